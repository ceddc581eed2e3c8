import pathlib
import re
import textwrap

TEXT = (pathlib.Path(__file__).parent.parent / "README.md").read_text()


def test_what_the_readme_shows_works(capsys):
    blocks = re.findall(r"^( *)```python\n(.*?)^ *```$", TEXT, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    for _, block in blocks:
        exec(compile(textwrap.dedent(block), "README.md", "exec"), {})
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "b'hello'" and said[1].endswith(" seconds")
    assert [line.split()[:2] for line in said[2:]] == [
        ["1", "True"],
        ["4", "True"],
        ["1", "False"],
        ["4", "False"],
    ]


def test_the_files_it_names_are_there():
    here = pathlib.Path(__file__).parent.parent
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        assert (here / target).exists(), target
