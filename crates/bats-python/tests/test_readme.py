import pathlib
import re
import textwrap

TEXT = (pathlib.Path(__file__).parent.parent / "README.md").read_text()


def test_readme_examples_work(capsys):
    blocks = re.findall(r"^( *)```python\n(.*?)^ *```$", TEXT, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    for _, block in blocks:
        exec(compile(textwrap.dedent(block), "README.md", "exec"), {})
    output = capsys.readouterr().out.splitlines()
    assert output[0] == "b'hello'" and output[1].endswith(" seconds")
    assert [line.split()[:2] for line in output[2:]] == [
        ["1", "True"],
        ["4", "True"],
        ["1", "False"],
        ["4", "False"],
    ]


def test_files_linked_in_the_readme_exist():
    here = pathlib.Path(__file__).parent.parent
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        assert (here / target).exists(), target
