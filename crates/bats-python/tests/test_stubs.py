import ast
import importlib.resources
import inspect

from openbats import _native


def stubs():
    text = (importlib.resources.files("openbats") / "_native.pyi").read_text()
    return ast.parse(text).body


def parameters(function):
    spec = function.args
    return [argument.arg for argument in spec.args + spec.kwonlyargs if argument.arg != "self"]


def of_native(function):
    names = inspect.signature(function).parameters
    return [name for name in names if name != "self"]


def test_stubs_match_the_native_module():
    named = set()
    for item in stubs():
        if isinstance(item, ast.AnnAssign):
            named.add(item.target.id)
        elif isinstance(item, ast.FunctionDef):
            named.add(item.name)
            assert parameters(item) == of_native(getattr(_native, item.name)), item.name
        elif isinstance(item, ast.ClassDef):
            named.add(item.name)
            native = getattr(_native, item.name)
            methods = [one for one in item.body if isinstance(one, ast.FunctionDef)]
            for method in methods:
                if method.name == "__init__":
                    assert parameters(method) == of_native(native), item.name
                else:
                    there = getattr(native, method.name)
                    assert parameters(method) == of_native(there), (item.name, method.name)
            there = {name for name in vars(native) if not name.startswith("_")}
            assert there == {one.name for one in methods} - {"__init__"}, item.name
    public = {name for name in vars(_native) if not name.startswith("_")}
    assert public == {name for name in named if not name.startswith("_")}
    assert "__version__" in named and (
        importlib.resources.files("openbats") / "py.typed"
    ).is_file()
