"""Storages are known by who made them, whatever address they have, and come back as the tensors that they were."""

import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slackswap_opt.runtime.storage import Geometry, Record, Storages, is_plain, storages_of, tensors_in


def record(maker: int) -> Record:
    return Record(maker, 0, torch.device("cpu"))


def test_a_storage_is_found_through_any_view_until_it_dies() -> None:
    dead: list[Record] = []
    storages: Storages[Record] = Storages(dead.append)
    tensor, one = torch.ones(4, 4), record(3)
    storages.attach(one, tensor.untyped_storage())
    view = tensor.t()[1:]
    assert storages.find(view.untyped_storage()) is one
    assert one.size == 64
    del tensor
    assert dead == []
    del view
    assert dead == [one]
    assert one.storage is None


def test_an_address_that_is_used_again_is_another_storage() -> None:
    storages: Storages[Record] = Storages(lambda _: None)
    addresses: set[int] = set()
    seen_again = False
    for number in range(200):
        storage = torch.ones(16).untyped_storage()
        seen_again |= storage._cdata in addresses
        assert storages.find(storage) is None
        storages.attach(record(number), storage)
        addresses.add(storage._cdata)
    assert seen_again


def test_an_address_is_not_enough_to_be_found() -> None:
    # Even if an entry were left behind under the address, the object that it refers to is not this one.
    storages: Storages[Record] = Storages(lambda _: None)
    tensor, other, stale = torch.ones(4), torch.ones(4), record(0)
    stale.reference = weakref.ref(other.untyped_storage())
    storages._by_address[tensor.untyped_storage()._cdata] = stale
    assert storages.find(tensor.untyped_storage()) is None


def test_a_record_can_stand_for_a_new_storage_once_the_old_one_died() -> None:
    deaths: list[Record] = []
    storages: Storages[Record] = Storages(deaths.append)
    one, first = record(0), torch.ones(2)
    storages.attach(one, first.untyped_storage())
    del first
    second = torch.ones(2)
    storages.attach(one, second.untyped_storage())
    assert storages.find(second.untyped_storage()) is one
    assert deaths == [one]


shapes = st.lists(st.integers(1, 3), min_size=1, max_size=4)


@given(shapes, st.permutations(range(4)), st.integers(0, 3), st.booleans())
def test_a_geometry_gives_the_tensor_back(shape: list[int], order: list[int], offset: int, expanded: bool) -> None:
    base = torch.arange(offset + torch.Size(shape).numel(), dtype=torch.float32)
    tensor = base[offset:].view(shape).permute([axis for axis in order if axis < len(shape)])
    if expanded:
        tensor = tensor.unsqueeze(0).expand(2, *tensor.shape)
    again = Geometry.of(tensor).on(tensor.untyped_storage())
    assert again.stride() == tensor.stride()
    assert torch.equal(again, tensor)


@pytest.mark.parametrize("view", [torch.conj, lambda z: z.conj().imag, lambda z: z.conj().real, lambda z: z.conj().t()])
def test_conjugate_and_negative_bits_come_back(view: object) -> None:
    base = torch.view_as_complex(torch.arange(8.0).view(2, 2, 2))
    tensor = view(base)  # type: ignore[operator]
    again = Geometry.of(tensor).on(tensor.untyped_storage())
    assert (again.is_conj(), again.is_neg()) == (tensor.is_conj(), tensor.is_neg())
    assert torch.equal(again, tensor)


def test_sparse_tensors_have_a_storage_for_each_part() -> None:
    coo = torch.eye(3).to_sparse()
    assert [storage.nbytes() for storage in storages_of(coo)] == [2 * 3 * 8, 3 * 4]
    assert not is_plain(coo)


def test_tensors_are_found_in_nested_arguments() -> None:
    one, two = torch.ones(1), torch.ones(2)
    assert list(tensors_in(([one, None, 3], {"out": (two,), "dim": 0}))) == [one, two]


def test_a_type_of_its_own_is_not_plain() -> None:
    class Marked(torch.Tensor):
        pass

    assert is_plain(torch.ones(1))
    assert is_plain(torch.nn.Parameter(torch.ones(1)))
    assert not is_plain(torch.ones(1).as_subclass(Marked))
