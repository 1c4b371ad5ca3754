"""Adapters that need no library: one that is right, and ones with planted faults."""

import os
import signal
import time

import numpy as np

from fastbert.bench.peers import EACH, SORTED, Adapter, PaddedInference

WIDTH = 8


class Right(Adapter):
    """Its "hidden states" are a function of the ids; with fp64 it is the truth, with fp32 it rounds."""

    def prepare(self, batch):
        self.batch = batch

    def answer(self):
        hidden = np.sin(self.batch["input_ids"][..., None] * np.arange(1.0, WIDTH + 1))
        return {"hidden": hidden if self.dtype == "fp64" else hidden.astype(np.float32)}

    def step(self):
        time.sleep(0.01)


class Padded(PaddedInference):
    """Right in every way; a call takes as long as its rectangle is large."""

    def inputs_of(self, batch):
        return batch["input_ids"]

    def hidden(self, inputs):
        time.sleep(1e-3 * inputs.size)
        return np.sin(inputs[..., None] * np.arange(1.0, WIDTH + 1)).astype(np.float32)


class ForgetsTheOrder(Padded):
    """Wrong if it sorts: what it computes is not put back to where it was."""

    def prepare(self, batch):
        super().prepare(batch)
        if self.way == SORTED:
            self.rows = [np.sort(rows) for rows in self.rows]


class DiesInOneWay(Padded):
    def hidden(self, inputs):
        if self.way == EACH:
            os.kill(os.getpid(), signal.SIGILL)
        return super().hidden(inputs)


class ForgetsMask(Right):
    """Wrong at one token alone: the last kept one of the second sequence."""

    def answer(self):
        hidden = super().answer()["hidden"]
        hidden[1, self.batch["attention_mask"][1].sum() - 1] = 0.5
        return {"hidden": hidden}


class GarbageInPads(Right):
    """Right: what stands at pads is nobody's business."""

    def answer(self):
        hidden = super().answer()["hidden"]
        hidden[self.batch["attention_mask"] == 0] = np.nan
        return {"hidden": hidden}


class NotANumber(Right):
    def answer(self):
        return {"hidden": super().answer()["hidden"] * np.float32("nan")}


class Transposed(Right):
    def answer(self):
        return {"hidden": super().answer()["hidden"].swapaxes(0, 1)}


class DiesOfAnInstruction(Right):
    def answer(self):
        os.kill(os.getpid(), signal.SIGILL)


class DiesWhileTimed(Right):
    runs = 0

    def step(self):
        self.runs += 1
        if self.runs > 3:
            os.kill(os.getpid(), signal.SIGILL)
        time.sleep(0.5)


class Refuses(Right):
    def prepare(self, batch):
        raise TypeError("no such shape\nand a long story")


class Hangs(Right):
    def prepare(self, batch):
        time.sleep(600)


class Slow(Right):
    """Right, but of a dtype that it emulates."""

    def answer(self):
        time.sleep(1.0)
        return super().answer()

    def step(self):
        time.sleep(1.0)


class Compiles(Right):
    """Right, but it compiles in its first run of a batch, as torch.compile does."""

    def answer(self):
        time.sleep(1.0)
        return super().answer()


class Noisy(Right):
    """A library that prints where the answers go."""

    def __init__(self, directory, dtype, threads):
        super().__init__(directory, dtype, threads)
        print("hello from Python")
        os.write(1, b"hello from C\n")


class Learns(Adapter):
    """A training whose loss falls."""

    fall = 0.1

    def prepare(self, batch):
        self.loss = 10.0

    def answer(self):
        return {"loss": np.array(10.0), "weight": np.ones(3)}

    def step(self):
        self.loss -= self.fall
        time.sleep(0.005)
        return self.loss


class LearnsNothing(Learns):
    """Its gradients are right, but no step changes the loss."""

    fall = 0.0


class WrongGradient(Learns):
    def answer(self):
        return super().answer() | {"weight": np.array([1.0, 1.0, 1.01])}
