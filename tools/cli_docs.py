#!/usr/bin/env python3
"""The manual page and the shell completions of the program, made from its own --help.

Usage: cli_docs.py RIDGE FOLDER   writes ridge.1, ridge.bash, _ridge (zsh) and ridge.fish into FOLDER
"""
import pathlib
import re
import subprocess
import sys

FLAG = re.compile(r"^  (-\S*)(?: (\S+))?(?: \(required\))?(?: \[[^\]]*\])?(?:  +(.*))?$")
SHORT_IN_TEXT = re.compile(r"\((-[a-z]+)\)")
FILES = re.compile(r"FILE|FOLDER|DIR|MODEL|PATH")


def help_of(program, *words):
    return subprocess.run([program, *words, "--help"], check=True, capture_output=True, text=True).stdout


class Command:
    """A command with its help: name, summary, and flags as (spellings, value, description)."""

    def __init__(self, program, name, summary):
        self.name, self.summary, self.help = name, summary, help_of(program, *name.split())
        self.flags = []
        for line in self.help.splitlines():
            found = FLAG.match(line)
            if found:
                spellings = found[1].split(",") + SHORT_IN_TEXT.findall(found[3] or "")[:1]
                self.flags.append((spellings, found[2] or "", found[3] or ""))

    def spellings(self):
        return [one for spellings, _, _ in self.flags for one in spellings]


def commands(program):
    listed = help_of(program).split("\nCommands:\n")[1].split("\n\n")[0]
    return [Command(program, *re.split(r"  +", line.strip(), maxsplit=1)) for line in listed.splitlines()]


def roff(text):
    """Text as roff shows it word for word."""
    return "\n".join("\\&" + line.replace("\\", "\\e").replace("-", "\\-") for line in text.splitlines())


def manual(program, all_commands):
    version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
    page = [f'.TH RIDGE 1 "" "ridge {version}" "User Commands"', ".SH NAME",
            "ridge \\- language models with compressed weights and compressed KV caches", ".SH SYNOPSIS",
            ".B ridge\n.I COMMAND\n.RI [ FLAGS ]", ".SH DESCRIPTION", ".nf", roff(help_of(program)), ".fi"]
    for command in all_commands:
        page += [f".SH {roff('ridge ' + command.name).upper()}", ".nf", roff(command.help), ".fi"]
    return "\n".join(page) + "\n"


def words_of_groups(all_commands):
    """{first word: second words} of nested commands."""
    groups = {}
    for command in all_commands:
        first, *rest = command.name.split()
        groups.setdefault(first, []).extend(rest)
    return groups


def bash(all_commands):
    groups = words_of_groups(all_commands)
    lines = ["# bash completion of ridge", "_ridge() {",
             '  local current=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} words=',
             '  case $command in ' + " | ".join(g for g, rest in groups.items() if rest) + ') command+=" ${COMP_WORDS[2]}" ;; esac',
             "  if [ $COMP_CWORD -eq 1 ]; then", f'    words="{" ".join(groups)} --help --version"', "  else",
             "    case $command in"]
    lines += [f'      "{c.name}") words="{" ".join(c.spellings())}" ;;' for c in all_commands]
    lines += [f'      "{first} "*) [ $COMP_CWORD -eq 2 ] && words="{" ".join(rest)}" ;;'
              for first, rest in groups.items() if rest]
    lines += ["    esac", "  fi", '  case $current in', '    -*) COMPREPLY=($(compgen -W "$words" -- "$current")) ;;',
              '    *) if [ $COMP_CWORD -eq 1 ] || [[ $words != -* && -n $words ]]; then',
              '         COMPREPLY=($(compgen -W "$words" -- "$current")); fi ;;', "  esac", "}",
              "complete -o default -F _ridge ridge"]
    return "\n".join(lines) + "\n"


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def zsh(all_commands):
    lines = ["#compdef ridge", "local -a commands", "commands=("]
    first = {}
    for c in all_commands:
        first.setdefault(c.name.split()[0], c.summary)
    escaped = {name: text.replace(":", "\\:") for name, text in first.items()}
    lines += [f"  {quoted(name + ':' + text)}" for name, text in escaped.items()] + [")"]
    lines += ["if (( CURRENT == 2 )); then _describe command commands; return; fi",
              'local command=$words[2]', 'case $command in']
    for group, rest in words_of_groups(all_commands).items():
        if rest:
            lines += [f"  {group})", f"    if (( CURRENT == 3 )); then compadd {' '.join(rest)}; return; fi",
                      '    command+=" $words[3]" ;;']
    lines += ["esac", "case $command in"]
    for c in all_commands:
        specs = []
        for spellings, value, text in c.flags:
            text = re.sub(r"([\[\]:\\])", r"\\\1", text)
            action = "" if not value else f":{value.split('[')[0]}:" + ("_files" if FILES.search(value) else "")
            specs += [quoted(f"*{one}[{text}]{action}") for one in spellings]
        lines.append(f"  {quoted(c.name)}) _arguments {' '.join(specs)} '*::file:_files' ;;")
    return "\n".join(lines + ["esac"]) + "\n"


def fish(all_commands):
    lines = ["# fish completion of ridge", "complete -c ridge -f"]
    for first, rest in words_of_groups(all_commands).items():
        summary = next(c.summary for c in all_commands if c.name.split()[0] == first)
        lines.append(f"complete -c ridge -n __fish_use_subcommand -a {first} -d {quoted(summary)}")
        if rest:
            seen = f"__fish_seen_subcommand_from {first}; and not __fish_seen_subcommand_from {' '.join(rest)}"
            lines.append(f"complete -c ridge -n {quoted(seen)} -a {quoted(' '.join(rest))}")
    for c in all_commands:
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in c.name.split())
        for spellings, value, text in c.flags:
            names = " ".join(f"-l {one[2:]}" if one.startswith("--") else f"-s {one[1:]}" if len(one) == 2 else f"-o {one[1:]}"
                             for one in spellings)
            value_flags = "" if not value else " -r" + (" -F" if FILES.search(value) else "")
            lines.append(f"complete -c ridge -n {quoted(seen)} {names}{value_flags} -d {quoted(text)}")
    return "\n".join(lines) + "\n"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip())
    program, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    all_commands = commands(program)
    (folder / "ridge.1").write_text(manual(program, all_commands))
    (folder / "ridge.bash").write_text(bash(all_commands))
    (folder / "_ridge").write_text(zsh(all_commands))
    (folder / "ridge.fish").write_text(fish(all_commands))


if __name__ == "__main__":
    main()
