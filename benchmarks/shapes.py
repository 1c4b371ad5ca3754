"""The shapes that every benchmark uses: those of `fastbert.bench.shapes`, under the name that drivers import."""

from fastbert.bench.shapes import ATTENTION_SHAPES, LAYER_SHAPES, LOSS_SHAPES, PRODUCT_SHAPES

__all__ = ["ATTENTION_SHAPES", "LAYER_SHAPES", "LOSS_SHAPES", "PRODUCT_SHAPES"]
