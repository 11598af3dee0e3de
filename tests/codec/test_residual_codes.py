"""Residual quantisation, against an exhaustive search."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from codec.residual_codes import Codebook, ResidualSearch

SIZE, WIDE, COUNT = 6, 4, 3


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


@pytest.fixture
def tables(generator: torch.Generator) -> list[Tensor]:
    return [torch.randn(SIZE, WIDE, generator=generator) / (n + 1) for n in range(COUNT)]


def encode(x: Tensor, books: list[Codebook], beam: int = 1) -> Tensor:
    return ResidualSearch(books, beam).encode(x)


def error(x: Tensor, tables: list[Tensor], codes: Tensor) -> Tensor:
    total = torch.stack([table[one] for table, one in zip(tables, codes, strict=True)]).sum(0)
    return (x - total).square().sum(1)


def exhaustive(x: Tensor, tables: list[Tensor]) -> Tensor:
    """The codes ``[K, n]`` with the nearest sum, of all combinations."""
    every = torch.tensor(list(product(range(SIZE), repeat=COUNT))).T
    sums = torch.stack([table[one] for table, one in zip(tables, every, strict=True)]).sum(0)
    return every[:, torch.cdist(x.double(), sums.double()).argmin(1)]


def test_beam_of_one_takes_nearest_code_of_each_codebook(
    generator: torch.Generator, tables: list[Tensor]
) -> None:
    x = torch.randn(40, WIDE, generator=generator)
    codes, rest = encode(x, [Codebook(t, t) for t in tables]), x
    for table, one in zip(tables, codes, strict=True):
        assert torch.equal(torch.cdist(rest.double(), table.double()).argmin(1), one)
        rest = rest - table[one]


def test_wide_beam_finds_nearest_sum(generator: torch.Generator, tables: list[Tensor]) -> None:
    x = torch.randn(300, WIDE, generator=generator)  # more than are searched at once
    books = [Codebook(table, table) for table in tables]
    assert torch.equal(encode(x, books, SIZE ** (COUNT - 1)), exhaustive(x, tables))
    errors = [float(error(x, tables, encode(x, books, beam)).mean()) for beam in (1, 4, 36)]
    assert errors[0] > 1.05 * errors[1] > errors[2]


def test_distances_are_measured_after_projection(
    generator: torch.Generator, tables: list[Tensor]
) -> None:
    """Equal to a search in the projected space, whose sums are projected back."""
    x, into = (torch.randn(n, WIDE, generator=generator) for n in (40, WIDE))
    back = torch.linalg.inv(into)
    books = [Codebook(table, table @ back, lambda rest: rest @ into) for table in tables]
    assert torch.equal(encode(x, books, 36), exhaustive(x @ into, tables))


@pytest.mark.parametrize("beam", [1, 16])
def test_lowest_of_equal_codes_is_taken(tables: list[Tensor], beam: int) -> None:
    doubled = tables[0].clone()
    doubled[4] = doubled[1]
    silent = torch.zeros(SIZE, WIDE)
    books = [Codebook(table, table) for table in (doubled, silent)]
    assert encode(doubled[[4, 1, 5]], books, beam).tolist() == [[1, 1, 5], [0, 0, 0]]


def test_no_vectors_have_no_codes(tables: list[Tensor]) -> None:
    assert encode(torch.zeros(0, WIDE), [Codebook(t, t) for t in tables], 4).shape == (COUNT, 0)


def test_orthogonal_codebook_takes_no_choices_from_others(generator: torch.Generator) -> None:
    """Codebooks of other dimensions in between change nothing, however near their codes are."""
    wide = torch.zeros(2, 8, 2 * WIDE)
    wide[0, :, :WIDE] = torch.randn(8, WIDE, generator=generator)
    wide[1, :, :WIDE] = torch.randn(8, WIDE, generator=generator) / 2
    other = torch.zeros(8, 2 * WIDE)
    other[:, WIDE:] = torch.randn(8, WIDE, generator=generator) / 100
    x = torch.randn(50, 2 * WIDE, generator=generator)
    first, second = (Codebook(table, table) for table in wide)
    alone = encode(x, [first, second], 4)
    assert not torch.equal(alone, encode(x, [first, second]))
    assert torch.equal(encode(x, [first, Codebook(other, other), second], 4)[[0, 2]], alone)
