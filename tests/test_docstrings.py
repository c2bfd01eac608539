"""Oracle: the signatures. `help` explains every argument that a public name takes."""

import inspect
import re

import pytest

import eqprop
from eqprop.engines import Engine

ABSTRACT = ("Model", "NotSettled", "Nudging", "Readout", "Synapses", "Update")  # or a warning
CALLABLES = {
    name: value
    for name in eqprop.__all__
    if callable(value := getattr(eqprop, name)) and name not in ABSTRACT
} | {f"Engine.{method}": getattr(Engine, method) for method in ("step", "run", "relax")}
EXPLAINED = (
    *("OneSided", "RandomSign", "Centred", "Holomorphic", "SGD", "CrossEntropy", "Conv2d"),
    *("EP", "ContinualEP", "VF", "ContinualVF", "BPTT", "RBP"),
    *("make_engine", "layered", "Network", "Dense", "relax", "gddcheck"),
    *("Engine.step", "Engine.run", "Engine.relax"),
)


def arguments(value):
    return [name for name in inspect.signature(value).parameters if name != "self"]


@pytest.mark.parametrize("name", CALLABLES)
def test_every_argument_is_named(name):
    text = inspect.getdoc(CALLABLES[name]) or ""
    assert text
    missing = [a for a in arguments(CALLABLES[name]) if not re.search(rf"\b{a}\b", text)]
    assert missing == []


@pytest.mark.parametrize("name", EXPLAINED)
def test_every_argument_of_the_main_names_has_an_entry_and_no_other_has(name):
    text = inspect.getdoc(CALLABLES[name])
    entries = re.findall(r"^    (\w+): \S", text.partition("Args:\n")[2], flags=re.MULTILINE)
    assert sorted(entries) == sorted(arguments(CALLABLES[name]))


@pytest.mark.parametrize("name", EXPLAINED)
def test_a_default_is_said(name):
    """ "Default" stands in the entry of every argument that has one."""
    text = inspect.getdoc(CALLABLES[name]).partition("Args:\n")[2]
    entries = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", text, flags=re.MULTILINE)
    explained = {argument: entry.lower() for argument, entry in entries}
    for parameter in inspect.signature(CALLABLES[name]).parameters.values():
        if parameter.default is not inspect.Parameter.empty:
            assert "default" in explained[parameter.name], parameter.name


def test_help_of_a_rule_of_ones_own_explains_what_it_inherits():
    class Own(eqprop.EP):
        """A rule of one's own.

        Args:
            more: something.
        """

    entries = re.findall(r"^    (\w+):", Own.__doc__, flags=re.MULTILINE)
    assert entries == [*arguments(eqprop.EP), "more"]
    assert Own.__doc__.startswith("A rule of one's own.\n\nArgs:\n")
