"""The names of tasks and where their classes are; a task's module is imported when it is asked for."""

from __future__ import annotations

import importlib

from ..errors import InputError
from .base import Task

TASKS = {
    "cola": "cola:CoLA",
    "sst2": "sst2:SST2",
    "mrpc": "mrpc:MRPC",
    "stsb": "stsb:STSB",
    "qqp": "qqp:QQP",
    "mnli": "mnli:MNLI",
    "qnli": "qnli:QNLI",
    "rte": "rte:RTE",
    "wnli": "wnli:WNLI",
    "squad1": "squad:Squad1",
    "squad2": "squad:Squad2",
    "swag": "swag:SWAG",
    "ner": "ner:NER",
    "text-classification": "text_classification:TextClassification",
    "text-multilabel": "text_multilabel:TextMultilabel",
    "text-regression": "text_regression:TextRegression",
}


def get(name: str) -> Task:
    """A new task of this name.

    Raises:
        InputError: there is no such task; the message lists all names.
    """
    if name not in TASKS:
        raise InputError(f"no such task: {name}; known are {', '.join(TASKS)}")
    module, _, cls = TASKS[name].partition(":")
    return getattr(importlib.import_module(f".{module}", __package__), cls)()
