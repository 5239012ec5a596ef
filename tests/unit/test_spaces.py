"""Spaces to tensors and back: nothing is lost, nothing is let through that the space does not hold."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array
from hypothesis import given
from hypothesis import strategies as st

from kumite.envs.spaces import BadObservation, Native, space_from_json, space_to_json
from kumite.errors import RunError, UserError

INF = float("inf")
BOX1 = spaces.Box(-1.0, 1.0, (1,))


def strict(data: Any) -> Any:
    return json.loads(json.dumps(data, allow_nan=False))


# Strategies: every supported space, nested.


def boxes() -> st.SearchStrategy[spaces.Box]:
    def build(shape: tuple[int, ...], dtype: str, kind: str, low: int, width: int) -> spaces.Box:
        if dtype == "uint8":
            return spaces.Box(0, 255, shape, np.uint8)
        if dtype == "int32":
            return spaces.Box(low, low + width, shape, np.int32)
        bounds = {"finite": (low, low + width), "free": (-INF, INF), "half": (low, INF)}[kind]
        return spaces.Box(*bounds, shape, np.dtype(dtype).type)

    return st.builds(
        build,
        st.sampled_from([(), (1,), (3,), (2, 3), (9, 8), (8, 9, 3), (4, 8, 8), (2, 8, 8, 3)]),
        st.sampled_from(["float32", "float64", "uint8", "int32"]),
        st.sampled_from(["finite", "free", "half"]),
        st.integers(-5, 5),
        st.integers(1, 9),
    )


def discretes() -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(lambda n, s: spaces.Discrete(n, start=s), st.integers(1, 6), st.integers(-3, 3)),
        st.builds(spaces.MultiDiscrete, st.lists(st.integers(1, 5), min_size=1, max_size=3)),
        st.just(spaces.MultiDiscrete(np.array([[2, 3], [4, 2]]), start=np.array([[1, 0], [-1, 5]]))),
        st.builds(spaces.MultiBinary, st.integers(1, 4)),
        st.just(spaces.MultiBinary((2, 2))),
    )


def nested(leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(["zoo", "arm", "left eye", "b", "a1"])
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.dictionaries(names, inner, min_size=1, max_size=3).map(lambda d: spaces.Dict(OrderedDict(d))),
            st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
        ),
        max_leaves=4,
    )


OBS = nested(st.one_of(boxes(), discretes()))
ACTION = nested(st.one_of(boxes().filter(lambda b: len(b.shape) < 3), discretes()))


@given(OBS, st.integers(0, 2**31 - 1))
def test_observations_single_batched_and_written_agree(space: Any, seed: int) -> None:
    native = Native(space, spaces.Discrete(2))
    space.seed(seed)
    samples = [space.sample() for _ in range(3)]
    batch = concatenate(space, samples, create_empty_array(space, 3))
    flat = native.encode(batch, batched=True)
    out = native.blank(3)
    for i, sample in enumerate(samples):
        single = native.encode(sample, batched=False)
        native.write(sample, out, i)
        assert list(single) == list(native.obs_space)
        for k, spec in native.obs_space.items():
            assert single[k].shape == spec.shape
            assert torch.from_numpy(single[k]).dtype == spec.dtype
            assert np.array_equal(single[k], flat[k][i])
            assert np.array_equal(single[k], out[k][i])
    assert not native.is_batched(samples[0])
    assert native.is_batched(batch)
    assert native.check(out) == -1


@given(OBS, ACTION)
def test_json_brings_the_same_spaces_back(space: Any, action: Any) -> None:
    native = Native(space, action)
    again = Native.from_json(strict(native.to_json()))
    assert again == native
    assert again.obs_space == native.obs_space
    assert again.action == native.action
    assert space_from_json(strict(space_to_json(space))) == space


@given(ACTION, st.integers(0, 2**31 - 1))
def test_every_decoded_action_is_in_its_space(space: Any, seed: int) -> None:
    native = Native(BOX1, space)
    torch.manual_seed(seed)
    action = native.action.random(4)
    c, d = action["c"].numpy() * 1.5, action["d"].numpy()
    native.refuse(c, d, 4)
    ones = native.decode(c, d)
    assert all(space.contains(x) or not native.action.bounded for x in ones)
    batch = native.decode_batch(c, d)
    many = batch_space(space, 4)
    assert many.contains(batch) or not native.action.bounded
    assert concatenate_equal(space, ones, batch)


def concatenate_equal(space: Any, ones: list[Any], batch: Any) -> bool:
    joined = concatenate(space, ones, create_empty_array(space, len(ones)))

    def same(a: Any, b: Any) -> bool:
        if isinstance(a, dict):
            return set(a) == set(b) and all(same(a[k], b[k]) for k in a)
        if isinstance(a, tuple):
            return all(map(same, a, b))
        return bool(np.array_equal(a, b))

    return same(joined, batch)


# Actions.


def test_boxes_are_scaled_per_dimension_and_clipped() -> None:
    space = spaces.Box(np.array([-2.0, 0.0, -1.0], np.float32), np.array([2.0, 10.0, 1.0], np.float32))
    native = Native(BOX1, space)
    c = np.array([[-1, -1, -1], [1, 1, 1], [0, 0, 0.25], [7, -7, 1.5]], np.float32)
    got = native.decode_batch(c, np.zeros((4, 0), np.int64))
    assert got.tolist() == [[-2, 0, -1], [2, 10, 1], [0, 5, 0.25], [2, 0, 1]]
    assert native.action.kind == "continuous"
    assert native.action.bounded


def test_the_unit_box_changes_no_bit() -> None:
    c = np.random.default_rng(0).uniform(-1, 1, (50, 3)).astype(np.float32)
    got = Native(BOX1, spaces.Box(-1.0, 1.0, (3,))).decode_batch(c, np.zeros((50, 0), np.int64))
    assert np.array_equal(got, c)
    got[:] = 9  # what the environment does with it stays there
    assert c.max() <= 1


def test_infinite_bounds_pass_through() -> None:
    space = spaces.Box(np.array([-INF, 0.0, -1.0], np.float32), np.array([INF, INF, 1.0], np.float32))
    native = Native(BOX1, space)
    got = native.decode_batch(np.array([[7.5, 3, 3], [-7.5, -3, 0.5]], np.float32), np.zeros((2, 0), np.int64))
    assert got.tolist() == [[7.5, 3, 1], [-7.5, 0, 0.5]]
    assert not native.action.bounded


@pytest.mark.parametrize(("low", "high"), [(2.2250738585072014e-308, 1.7e308), (-3.4e38, 3.4e38)])
def test_bounds_that_mean_none(low: float, high: float) -> None:
    assert not Native(BOX1, spaces.Box(low, high, (2,), np.float64)).action.bounded


def test_integer_boxes_are_rounded() -> None:
    native = Native(BOX1, spaces.Box(0, 10, (1,), np.int32))
    got = native.decode_batch(np.array([[-1], [0.08], [1]], np.float32), np.zeros((3, 0), np.int64))
    assert got.dtype == np.int32
    assert got[:, 0].tolist() == [0, 5, 10]


def test_nested_actions_are_flattened_in_order_and_restored() -> None:
    space = spaces.Dict(
        OrderedDict(
            tool=spaces.Discrete(3, start=5),
            move=spaces.Tuple((spaces.Box(0.0, 2.0, (2, 2)), spaces.MultiBinary(2))),
            gear=spaces.MultiDiscrete([4, 2]),
        )
    )
    native = Native(BOX1, space)
    assert native.action.continuous == 4
    assert native.action.branches == (3, 2, 2, 4, 2)
    assert native.action.kind == "hybrid"
    [action] = native.decode(np.array([[-1, 0, 1, 0.5]], np.float32), np.array([[2, 1, 0, 3, 1]]))
    assert action["tool"] == 7
    assert action["move"][0].tolist() == [[0, 1], [2, 1.5]]
    assert action["move"][1].tolist() == [1, 0]
    assert action["gear"].tolist() == [3, 1]
    assert space.contains(action)


def test_bad_actions_are_refused_before_the_simulator() -> None:
    native = Native(BOX1, spaces.Tuple((spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,)))))
    c, d = np.zeros((3, 2), np.float32), np.zeros((3, 1), np.int64)
    native.refuse(c, d, 3)
    for bad in (np.nan, np.inf, -np.inf):
        c[1, 1] = bad
        with pytest.raises(RunError, match=r"environment 1 .*diverged"):
            native.refuse(c, d, 3)
        native.refuse(c, d, 3, alive=np.array([True, False, True]))
    c[1, 1] = 0
    for bad in (3, -1, 77):
        d[2, 0] = bad
        with pytest.raises(RunError, match="environment 2"):
            native.refuse(c, d, 3)
    with pytest.raises(RunError, match="shapes"):
        native.refuse(c[:, :1], d, 3)
    with pytest.raises(RunError, match="shapes"):
        native.refuse(c, d, 2)


def test_nan_bounds_are_the_users_mistake() -> None:
    space = spaces.Box(-1.0, 1.0, (2,))
    space.low[0] = np.nan
    with pytest.raises(UserError, match="NaN bound"):
        Native(BOX1, space)


@pytest.mark.parametrize("space", [spaces.Text(5), spaces.Sequence(BOX1), spaces.Graph(BOX1, None)])
def test_unsupported_spaces_are_named(space: Any) -> None:
    with pytest.raises(UserError, match="is not supported; supported are Box"):
        Native(space, BOX1)
    with pytest.raises(UserError, match="'words'"):
        Native(spaces.Dict(words=space, numbers=BOX1), BOX1)
    with pytest.raises(UserError, match="is not supported"):
        Native(BOX1, space)
    with pytest.raises(UserError, match="is not supported"):
        Native(BOX1, spaces.Tuple((space, BOX1)))


# Observations.


@pytest.mark.parametrize(
    ("shape", "dtype", "want"),
    [
        ((84, 84, 3), np.uint8, (3, 84, 84)),
        ((4, 84, 84), np.uint8, (4, 84, 84)),
        ((84, 96), np.uint8, (1, 84, 96)),
        ((7, 7, 3), np.uint8, (3, 7, 7)),
        ((4, 84, 84, 3), np.uint8, (12, 84, 84)),
        ((2, 3, 84, 84), np.uint8, (6, 84, 84)),
        ((32, 32, 3), np.float32, (3, 32, 32)),
    ],
)
def test_images_come_channels_first(shape: tuple[int, ...], dtype: Any, want: tuple[int, ...]) -> None:
    native = Native(spaces.Box(0, 255, shape, dtype), spaces.Discrete(2))
    spec = native.obs_space["obs"]
    assert spec.image
    assert spec.shape == want
    assert spec.dtype == (torch.uint8 if dtype == np.uint8 else torch.float32)
    picture = np.random.default_rng(0).integers(0, 255, shape).astype(dtype)
    got = native.encode(picture, batched=False)["obs"]
    assert sorted(got.ravel().tolist()) == sorted(picture.ravel().tolist())
    if len(shape) == 3 and shape[-1] == 3:
        assert np.array_equal(got, picture.transpose(2, 0, 1))
    if len(shape) == 4 and shape[-1] == 3:
        assert np.array_equal(got[3:6], picture[1].transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("shape", "dtype"), [((128,), np.uint8), ((2, 3), np.uint8), ((2, 3, 4), np.float32), ((), np.int8)]
)
def test_small_arrays_are_plain_numbers(shape: tuple[int, ...], dtype: Any) -> None:
    spec = Native(spaces.Box(0, 100, shape, dtype), spaces.Discrete(2)).obs_space["obs"]
    assert spec.shape == (max(1, int(np.prod(shape))),)
    assert spec.dtype == torch.float32
    assert not spec.image


def test_choices_are_integers_from_zero() -> None:
    space = spaces.Dict(
        OrderedDict(
            room=spaces.Discrete(4, start=10), dice=spaces.MultiDiscrete([6, 2], start=[1, 0]), on=spaces.MultiBinary(2)
        )
    )
    native = Native(space, spaces.Discrete(2))
    got = native.encode({"room": 12, "dice": np.array([6, 1]), "on": np.array([0, 1], np.int8)}, batched=False)
    assert {k: v.tolist() for k, v in got.items()} == {"room": [2], "dice": [5, 1], "on": [0, 1]}
    assert native.obs_space["room"].shape == (1,)
    assert native.obs_space["dice"].choices == (6, 2)
    assert native.obs_space["on"].choices == (2, 2)
    with pytest.raises(BadObservation, match="'dice' is outside"):
        native.encode({"room": 12, "dice": np.array([0, 1]), "on": np.array([0, 1])}, batched=False)


def test_names_are_dotted() -> None:
    space = spaces.Dict(arm=spaces.Dict(joints=BOX1, eye=spaces.Tuple((BOX1, BOX1))), floor=BOX1)
    assert list(Native(space, BOX1).obs_space) == ["arm.joints", "arm.eye.0", "arm.eye.1", "floor"]
    with pytest.raises(UserError, match=r"both called 'a\.b'"):
        Native(spaces.Dict({"a.b": BOX1, "a": spaces.Dict(b=BOX1)}), BOX1)


def test_the_mask_is_no_input() -> None:
    action = spaces.MultiDiscrete([3, 2])
    space = spaces.Dict(action_mask=spaces.Box(0, 1, (5,), np.int8), observation=BOX1)
    native = Native(space, action)
    assert native.masked
    assert native.obs_space["mask"].dtype == torch.bool
    got = native.encode({"action_mask": np.array([1, 0, 1, 0, 1], np.int8), "observation": np.zeros(1)}, batched=False)
    assert got["mask"].tolist() == [True, False, True, False, True]
    assert Native(spaces.Dict(mask=spaces.MultiBinary(5), o=BOX1), action).masked
    # something else of that name keeps its values under another
    other = Native(spaces.Dict(mask=spaces.Box(-1.0, 1.0, (4,)), o=BOX1), action)
    assert not other.masked
    assert list(other.obs_space) == ["mask_", "o"]
    assert not Native(space, spaces.Box(-1.0, 1.0, (5,))).masked


def test_hidden_and_joined_entries() -> None:
    space = spaces.Dict(
        OrderedDict(a=spaces.Box(-9.0, 9.0, (3,)), room=spaces.Discrete(3), b=spaces.Box(-9.0, 9.0, (2, 1), np.float64))
    )
    obs = {"a": np.array([1, 2, 3], np.float32), "room": 1, "b": np.array([[4.0], [5.0]])}
    joined = Native(space, BOX1, flatten=True)
    assert joined.encode(obs, batched=False)["obs"].tolist() == [1, 2, 3, 4, 5]
    assert list(joined.obs_space) == ["obs", "room"]
    hidden = Native(space, BOX1, hide=(1, -1), flatten=True)
    assert hidden.obs_space["obs"].shape == (3,)
    assert hidden.encode(obs, batched=False)["obs"].tolist() == [1, 3, 4]
    assert Native.from_json(strict(hidden.to_json())) == hidden
    plain = Native(spaces.Box(-9.0, 9.0, (4,)), BOX1, hide=(1, 3))
    assert plain.encode(np.array([[1.0, 2, 3, 4]]), batched=True)["obs"].tolist() == [[1, 3]]
    with pytest.raises(UserError, match=r"join them with --env\.flatten"):
        Native(space, BOX1, hide=(1,))
    with pytest.raises(UserError, match="index 7"):
        Native(spaces.Box(-9.0, 9.0, (4,)), BOX1, hide=(7,))
    with pytest.raises(UserError, match="nothing to observe"):
        Native(BOX1, BOX1, hide=(0,))
    with pytest.raises(UserError, match="this observation has none"):
        Native(spaces.Discrete(3), BOX1, hide=(0,))


@pytest.mark.parametrize(
    "bad",
    [np.zeros(3), np.zeros((2, 2)), np.array("x"), None, np.array([None, 1]), np.zeros(2, complex), [1.0], {"obs": 1}],
)
def test_what_does_not_fit_is_refused(bad: Any) -> None:
    native = Native(spaces.Box(-1.0, 1.0, (2,)), BOX1)
    with pytest.raises(BadObservation, match="the observation"):
        native.write(bad, native.blank(1), 0)


@pytest.mark.parametrize("bad", [np.full((9, 9), 300), np.full((9, 9), -1), np.full((9, 9), 0.5)])
def test_images_hold_bytes(bad: Any) -> None:
    native = Native(spaces.Box(0, 255, (9, 9), np.uint8), BOX1)
    with pytest.raises(BadObservation):
        native.write(bad, native.blank(1), 0)


def test_missing_entries_are_named() -> None:
    native = Native(spaces.Dict(a=BOX1, b=spaces.Dict(c=BOX1)), BOX1)
    with pytest.raises(BadObservation, match=r"no entry 'b\.c'"):
        native.write({"a": np.zeros(1), "b": {}}, native.blank(1), 0)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_observations_are_found(value: float) -> None:
    native = Native(spaces.Dict(a=BOX1, b=BOX1), BOX1)
    out = native.encode({"a": np.zeros((4, 1)), "b": np.zeros((4, 1))}, batched=True)
    assert native.check(out) == -1
    out["b"][2] = value
    assert native.check(out) == 2
    assert "'b'" in native.describe(out, 2)
    out = native.encode({"a": np.full((4, 1), 3e38), "b": np.zeros((4, 1))}, batched=True)
    assert native.check(out) == -1  # large, but a number


def test_shapes_that_are_neither_one_nor_a_batch() -> None:
    native = Native(spaces.Box(-1.0, 1.0, (2,)), BOX1)
    assert not native.is_batched([0.0, 1.0])
    assert native.is_batched(np.zeros((2, 2)))
    with pytest.raises(UserError, match=r"shape \(3,\); expected \(2,\)"):
        native.is_batched(np.zeros(3))
    assert not Native(spaces.Discrete(3), BOX1).is_batched(1)
    assert Native(spaces.Discrete(3), BOX1).is_batched(np.array([1, 2]))


def test_float64_is_cast_once_and_bits_of_float32_are_kept() -> None:
    native = Native(spaces.Box(-INF, INF, (2,), np.float64), BOX1)
    x = np.array([1 / 3, 1e-8])
    assert np.array_equal(native.encode(x, batched=False)["obs"], x.astype(np.float32))


def test_an_unlegal_mask_is_opened_at_an_end_only() -> None:
    native = Native(BOX1, spaces.MultiDiscrete([2, 2]))
    mask = np.array([[1, 0, 0, 1], [1, 1, 0, 0]], bool)
    assert native.allow(mask.copy(), np.array([False, False])) == 1
    assert native.allow(mask, np.array([False, True])) == -1
    assert mask.tolist() == [[True, False, False, True], [True, True, True, True]]
