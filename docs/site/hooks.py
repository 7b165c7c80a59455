"""What the documentation site has beside the pages in docs/: references read off the code, and pages of the root.

MkDocs calls the functions named `on_…`. Nothing that they write lands in docs/.
"""

import ast
import inspect
import re
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))
PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security-policy.md"}
LINK = re.compile(r"(?<!`)\[([^\]\[]+)\]\(([^)\s#:]+)((?:#[^)]*)?)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and pages that the nav does not name to the part where they belong."""
    made = {
        "reference/commands.md": commands(),
        "reference/config.md": settings(),
        "reference/http.md": routes(),
        "reference/python.md": api(),
        **{target: (ROOT / name).read_text(encoding="utf-8") for name, target in PAGES.items()},
    }
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    config.nav = [part for entry in config.nav or [] if (part := _there(entry, files)) is not None]
    parts = {name: entry[name] for entry in config.nav for name in entry}
    named = set(re.findall(r"'([\w/.-]+\.md)'", str(config.nav)))
    left = sorted(file.src_uri for file in files.documentation_pages() if file.src_uri not in named)
    parts["Guides"] += [page for page in left if "/" not in page]
    for folder in sorted({page.split("/")[1] for page in left if page.startswith("results/")}):
        inner = [page for page in left if page.startswith(f"results/{folder}/")]
        parts["Results"].append({folder.capitalize(): inner})
    return files


def _there(entry: Any, files: Files) -> Any:
    """A part of the nav without the pages that are not there (yet)."""
    if isinstance(entry, str):
        return entry if files.get_file_from_path(entry) else None
    ((name, inner),) = entry.items()
    if isinstance(inner, list):
        return {name: [kept for one in inner if (kept := _there(one, files)) is not None]}
    return entry if files.get_file_from_path(inner) else None


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links that lead out of docs/ lead to the pages of the root, to the repository where it is known, or nowhere."""
    home = PAGES_AT.get(page.file.src_uri, Path("docs") / page.file.src_uri).parent

    def lead(found: re.Match[str]) -> str:
        text, target, anchor = found.groups()
        aim = (ROOT / home / target).resolve()
        if not aim.is_relative_to(ROOT) or not aim.exists():
            return found[0]
        inside, depth = aim.relative_to(ROOT).as_posix(), "../" * page.file.src_uri.count("/")
        if inside in PAGES:
            return f"[{text}]({depth}{PAGES[inside]}{anchor})"
        if inside.startswith("docs/") and files.get_file_from_path(inside.removeprefix("docs/")):
            return f"[{text}]({depth}{inside.removeprefix('docs/')}{anchor})"
        if inside == "README.md":
            return f"[{text}]({depth}index.md)"
        return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{inside})" if config.repo_url else text

    return LINK.sub(lead, re.sub("^### ", "# ", markdown))  # tables of results begin with a small heading


PAGES_AT = {target: Path(name) for name, target in PAGES.items()}


# ── commands ─────────────────────────────────────────────────────────────────────────────────────────────


def commands() -> str:
    """Every command with its arguments and options, from the command line itself."""
    import typer

    from hyphash.cli import app

    root = typer.main.get_command(app)
    lines = [
        "# Commands",
        "",
        str(root.help),
        "",
        "Exit codes: 0 done, 1 a fault of hyphash, 2 bad input, 130 stopped.",
    ]
    panels: dict[str, list[tuple[str, Any]]] = {}
    for name, command in root.commands.items():
        panels.setdefault(command.rich_help_panel, []).append((name, command))
    for panel, some in panels.items():
        lines += ["", f"## {panel}"]
        for name, command in some:
            for words, one in _leaves(name, command):
                lines += _command(words, one)
    return "\n".join(lines) + "\n"


def _leaves(name: str, command: Any) -> list[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    return [(f"{name} {word}", one) for word, one in inner.items()] if inner else [(name, command)]


def _command(words: str, command: Any) -> list[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    usage = " ".join(_argument(p) for p in arguments)
    lines = ["", f"### hyphash {words}", "", inspect.cleandoc(command.help or ""), "", "```text"]
    lines += [f"hyphash {words} {usage} [OPTIONS]".replace("  ", " "), "```", "", "| | | default |", "|---|---|---|"]
    for param in command.params:
        if not getattr(param, "hidden", False):
            lines.append(f"| {_names(param)} | {_cell(param.help)} | {_default(param)} |")
    return lines


def _argument(param: Any) -> str:
    name = param.name.rstrip("_").upper() + ("…" if param.nargs == -1 else "")
    return name if param.required else f"[{name}]"


def _names(param: Any) -> str:
    if param.param_type_name == "argument":
        return f"`{param.name.rstrip('_').upper()}`"
    return ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))


def _default(param: Any) -> str:
    """What the option is without being given; a help text that says so itself has the last word."""
    if said := re.search(r"\[default: (.*)\]", param.help or ""):
        return _cell(said[1])
    if param.required:
        return "*needed*"
    shown = param.default() if callable(param.default) else param.default
    return "" if shown in (None, False, "", (), []) else f"`{shown}`"


def _cell(text: str | None) -> str:
    return re.sub(r"\s*\[default: .*\]", "", text or "").replace("|", r"\|").replace("<", "&lt;")


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────


def settings() -> str:
    """Every key of config.toml, with the remark that stands beside it in the source."""
    from hyphash.config import Config

    remarks = _remarks(Config)
    lines = [
        "# Settings",
        "",
        "Every key of a run's `config.toml`. Each can be given as an option of `hyphash train`, as `--set NAME=VALUE`,",
        "or in a file (`--config`). What has no default is chosen by the method, the mode and the backbone when a run",
        "starts, and the run's own `config.toml` says what was chosen.",
        "",
        "| key | kind | default | |",
        "|---|---|---|---|",
    ]
    for field in fields(Config):
        default = field.default if field.default is not MISSING else {}
        shown = "" if default is None else f"`{default!r}`".replace("'", '"')
        kind = str(field.type if isinstance(field.type, str) else _kind(field.type)).replace("|", r"\|")
        lines.append(f"| `{field.name}` | {kind} | {shown} | {_cell(remarks.get(field.name))} |")
    return "\n".join(lines) + "\n"


def _kind(hint: Any) -> str:
    return (
        hint.__name__
        if isinstance(hint, type)
        else re.sub(r"\btyping\.|NoneType", "", str(hint)).replace(" | None", "")
    )


def _remarks(cls: type) -> dict[str, str]:
    """By field: the comment at the end of its line."""
    source = inspect.getsource(cls)
    lines = source.splitlines()
    (body,) = [node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    found = {}
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            line = lines[(node.end_lineno or 1) - 1].encode()[node.end_col_offset or 0 :].decode()
            found[node.target.id] = line.strip().lstrip("# ")
    return found


# ── HTTP ─────────────────────────────────────────────────────────────────────────────────────────────────


def routes() -> str:
    """Every route of the service, from the schema that it answers with under /openapi.json."""
    from hyphash.service.app import create_app

    schema = create_app(MagicMock()).openapi()
    lines = ["# HTTP", "", str(schema["info"]["summary"]), ""]
    lines += [
        "Routes with *(token)* need `Authorization: Bearer TOKEN`; see [who may do what](../serve.md#who-may-do-what).",
        "",
    ]
    groups: dict[str, list[str]] = {}
    for path, methods in schema["paths"].items():
        for method, route in methods.items():
            group = (route.get("tags") or ["other"])[0].capitalize()
            groups.setdefault(group, []).extend(_route(method.upper(), path, route, schema))
    for group, inner in groups.items():
        lines += [f"## {group}", "", *inner]
    lines += ["## Answers", ""]
    for name, model in sorted(schema["components"]["schemas"].items()):
        if model.get("properties") and not name.startswith(("Body_", "HTTPValidation", "ValidationError")):
            lines += [f"### {name}", "", model.get("description", "").partition("\n\n")[0], "", *_fields(model), ""]
    return "\n".join(lines) + "\n"


def _route(method: str, path: str, route: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    key = " (token)" if route.get("security") else ""
    lines = [f"### {method} {path}{key}", "", route.get("description", ""), ""]
    rows = [(p["name"], p["in"], _type(p["schema"]), p.get("description", "")) for p in route.get("parameters", [])]
    for kind, content in route.get("requestBody", {}).get("content", {}).items():
        model = _resolved(content["schema"], schema)
        where = "form" if "form" in kind else "JSON"
        for name, one in model.get("properties", {}).items():
            rows.append((name, where, _type(one), one.get("description", "")))
    if rows:
        lines += ["| parameter | in | kind | |", "|---|---|---|---|"]
        lines += [f"| `{name}` | {where} | {kind} | {_cell(about)} |" for name, where, kind, about in rows] + [""]
    answer = next((a for code, a in route["responses"].items() if code.startswith("2")), {})
    model = next(iter(answer.get("content", {}).values()), {}).get("schema", {})
    codes = ", ".join(code for code in sorted(route["responses"]) if not code.startswith("2"))
    return [*lines, f"Answer: {_type(model) or 'no JSON'}. Else: {codes}.", ""]


def _resolved(model: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    return schema["components"]["schemas"][model["$ref"].rpartition("/")[2]] if "$ref" in model else model


def _fields(model: dict[str, Any]) -> list[str]:
    rows = [
        f"| `{name}` | {_type(one)} | {_cell(one.get('description'))} |" for name, one in model["properties"].items()
    ]
    return ["| field | kind | |", "|---|---|---|", *rows]


def _type(model: dict[str, Any]) -> str:
    if "$ref" in model:
        name = model["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if options := model.get("anyOf"):
        return " or ".join(_type(option) for option in options if option.get("type") != "null")
    if model.get("type") == "array":
        return f"list of {_type(model.get('items', {})) or 'anything'}"
    if "enum" in model:
        return ", ".join(f"`{value}`" for value in model["enum"])
    return str(model.get("format") or model.get("type") or "")


# ── Python ───────────────────────────────────────────────────────────────────────────────────────────────

MORE = ("hyphash.photos.PhotoFiles", "hyphash.collection.Match", "hyphash.collection.Ranking")  # what these give back


def api() -> str:
    """The public names, from their docstrings."""
    import hyphash

    lines = ["# Python", "", "The public names of `hyphash`; they are loaded when they are first used.", ""]
    for name, home in sorted(hyphash._HOMES.items(), key=lambda pair: (not pair[1], pair[0].lower())):
        lines += [f"::: hyphash.{home + '.' if home else ''}{name}", ""]
    for name in MORE:
        lines += [f"::: {name}", ""]
    return "\n".join(lines)
