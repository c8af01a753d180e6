"""Bytes that compiled programs send, against what their collectives send by hand."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from attnlab.bench import network
from attnlab.bench.case import Sent

ROWS, WIDTH = 6, 5  # of one device
SIZE = 4 * ROWS * WIDTH


def compiled(body, devices_per_host=2):
    """What each of two CPU devices sends, which both have [ROWS, WIDTH] of float32."""
    mesh = jax.make_mesh((2,), ("d",))
    over = functools.partial(jax.shard_map, mesh=mesh, in_specs=PartitionSpec("d"))
    function = jax.jit(over(body, out_specs=PartitionSpec("d"), check_vma=False))
    where = jax.NamedSharding(mesh, PartitionSpec("d"))
    shape = jax.ShapeDtypeStruct((2 * ROWS, WIDTH), jnp.float32, sharding=where)
    text = function.lower(shape).compile().as_text()
    return network.sent(text, devices=2, devices_per_host=devices_per_host)


BODIES = {
    "psum": (lambda x: jax.lax.psum(x, "d"), SIZE),
    "all_gather": (lambda x: jax.lax.all_gather(x, "d"), SIZE),
    "psum_scatter": (lambda x: jax.lax.psum_scatter(x, "d", tiled=True), SIZE / 2),
    "all_to_all": (lambda x: jax.lax.all_to_all(x, "d", 0, 1, tiled=True), SIZE / 2),
    "ppermute": (lambda x: jax.lax.ppermute(x, "d", [(0, 1), (1, 0)]), SIZE),
    "nothing": (jnp.tanh, 0),
}


@pytest.mark.parametrize("name", BODIES)
def test_each_collective_of_two_devices(name):
    body, expected = BODIES[name]
    assert compiled(body) == Sent(expected, 0)
    assert compiled(body, devices_per_host=1) == Sent(expected, expected)


def test_loops_count_as_often_as_they_run():
    def inner(x, _):
        return jnp.sin(jax.lax.psum(x, "d")), None

    def outer(x, _):
        x = jnp.sin(jax.lax.all_gather(x, "d")[0])
        return jax.lax.scan(inner, x, length=7)[0], None

    found = compiled(lambda x: jax.lax.scan(outer, x, length=11)[0])
    assert found.total == 11 * (SIZE + 7 * SIZE)


PROGRAM = """HloModule step, entry_computation_layout={(f32[6,5]{1,0:T(8,128)})->f32[6,5]{1,0}}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[]{:T(128)} parameter(0)
  %b = f32[]{:T(128)} parameter(1)
  ROOT %sum = f32[]{:T(128)} add(%a, %b)
}

%part (p: f32[6,5]) -> f32[6,5] {
  %p = f32[6,5]{1,0:T(8,128)} parameter(0)
  ROOT %of_part = f32[6,5]{1,0:T(8,128)} all-reduce(%p), replica_groups={}, to_apply=%add
}

%other (q: f32[6,5]) -> f32[6,5] {
  ROOT %q = f32[6,5]{1,0:T(8,128)} parameter(0)
}

%all-reduce-scatter.7.clone (s: f32[48,5]) -> f32[6,5] {
  %s = f32[48,5]{1,0:T(8,128)} parameter(0)
  %all = f32[48,5]{1,0:T(8,128)} all-reduce(%s), replica_groups={}, to_apply=%add
  ROOT %mine = f32[6,5]{1,0:T(8,128)} dynamic-slice(%all, %i), dynamic_slice_sizes={6,5}
}

%begins (t: f32[6,5]) -> f32[48,5] {
  %t = f32[6,5]{1,0:T(8,128)} parameter(0)
  ROOT %gathered = f32[48,5]{1,0:T(8,128)} all-gather(%t), replica_groups={}, CHAIN"-1"}
}

%goes_on (u: f32[6,5]) -> f32[48,5] {
  %u = f32[6,5]{1,0:T(8,128)} parameter(0)
  ROOT %gathered.2 = f32[48,5]{1,0:T(8,128)} all-gather(%u), replica_groups={}, CHAIN"2"}
}

%unknown (j: (s32[], f32[6,5])) -> pred[] {
  %j = (s32[]{:T(128)}, f32[6,5]{1,0:T(8,128)}) parameter(0)
  ROOT %less = pred[]{:T(512)} custom-call(%j), custom_call_target="less"
}

%below (k: (s32[], s32[], f32[6,5])) -> pred[] {
  %k = (s32[]{:T(128)}, s32[]{:T(128)}, f32[6,5]{1,0:T(8,128)}) parameter(0)
  %k.0 = s32[]{:T(128)} get-tuple-element(%k), index=0
  %k.1 = s32[]{:T(128)} get-tuple-element(%k), index=1
  ROOT %lt = pred[]{:T(512)} compare(%k.0, %k.1), direction=LT
  %after = s32[]{:T(128)} copy(%k.0)
}

%steps (m: (s32[], s32[], f32[6,5])) -> (s32[], s32[], f32[6,5]) {
  %m = (s32[]{:T(128)}, s32[]{:T(128)}, f32[6,5]{1,0:T(8,128)}) parameter(0)
  %m.0 = s32[]{:T(128)} get-tuple-element(%m), index=0
  %m.1 = s32[]{:T(128)} get-tuple-element(%m), index=1
  %m.2 = f32[6,5]{1,0:T(8,128)} get-tuple-element(%m), index=2
  %three = s32[]{:T(128)} constant(3)
  %copied = s32[]{:T(128)} copy(%m.0)
  %next = s32[]{:T(128)} add(%copied, %three)
  %summed = f32[6,5]{1,0:T(8,128)} all-reduce(%m.2), replica_groups={}, to_apply=%add
  ROOT %n = (s32[], s32[], f32[6,5]) tuple(%next, %m.1, /*index=2*/%summed)
}

ENTRY %main (x: f32[6,5], h: bf16[6,5]) -> f32[6,5] {
  %x = f32[6,5]{1,0:T(8,128)} parameter(0), sharding={devices=[8,1]<=[8]}
  %h = bf16[6,5]{1,0:T(8,128)(2,1)} parameter(1)
  %one = s32[]{:T(128)} constant(1)
  %twelve = s32[]{:T(128)} constant(12)
  %first = s32[]{:T(128)} copy(%one)
  %from_one = (s32[], s32[], f32[6,5]) tuple(%first, %twelve, %x)
  %whole = f32[48,5]{1,0:T(8,128)} broadcast(%x), dimensions={0}
  LINE
}
"""
CHAIN = 'frontend_attributes={chain_id="3"}, backend_config={"flag_start":'


def line(text: str) -> Sent:
    """A program of eight devices on two hosts with this line."""
    return network.sent(
        PROGRAM.replace("CHAIN", CHAIN).replace("LINE", text), devices=8, devices_per_host=4
    )


@pytest.mark.parametrize(
    ("text", "total", "between"),
    [
        ("all-gather(%x), replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}", 7, 1),
        ("all-gather(%x), replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}", 3, 0),
        ("all-gather(%x), replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}", 1, 1),
        ("all-gather(%x), replica_groups=[4,2]<=[8], dimensions={0}", 1, 0),
        ("reduce-scatter(%x), replica_groups={}, dimensions={0}, to_apply=%add", 7 / 8, 1 / 8),
        ("all-reduce(%x), replica_groups=[1,8]<=[8], to_apply=%add", 7 / 4, 1 / 4),
        ("all-reduce(%x), replica_groups=[8,1]<=[8], to_apply=%add", 0, 0),
        ("all-to-all(%x), replica_groups=[1,8]<=[8], dimensions={0}", 7 / 8, 1 / 2),
        ("all-reduce(%x, %h), replica_groups={}, to_apply=%add", 7 / 4 * 1.5, 1 / 4 * 1.5),
        ("collective-permute(%x), source_target_pairs={{0,1},{1,0}}", 1, 0),
        ("collective-permute(%x), source_target_pairs={{0,1},{3,4}}", 1, 1),
        ("call(%x), to_apply=%part", 7 / 4, 1 / 4),
        ("fusion(%x), kind=kCustom, calls=%part", 7 / 4, 1 / 4),
        ("async-done(%x), calls=%part", 0, 0),
        ("conditional(%i, %x, %x), branch_computations={%part, %other}", 0, 0),
        ("conditional(%i, %x, %x), true_computation=%part, false_computation=%part", 7 / 4, 1 / 4),
        (
            "while(%x), condition=%c, body=%part, "
            'backend_config={"known_trip_count":{"n":"3"},"known_init_step":{"init":"0"}}',
            21 / 4,
            3 / 4,
        ),
        ("while(%x), condition=%c, body=%other", 0, 0),
        ("fusion(%whole), kind=kCustom, calls=%all-reduce-scatter.7.clone", 7, 1),
        ("while(%from_one), condition=%below, body=%steps", 4 * 7 / 4, 4 / 4),  # at 1, 4, 7 and 10
        ("all-gather(%x), replica_groups=mesh['a'=2,'b'=4] {'a'}, dimensions={0}", 1, 1),
        ("all-gather(%x), replica_groups=mesh['a'=2,'b'=4] {'b'}, dimensions={0}", 3, 0),
        ("all-gather(%x), replica_groups=mesh['a'=2,'b'=2,'c'=2] {'a','c'}, use=true", 3, 1),
        ("all-gather(%x), replica_groups=mesh['a'=8,'b'=1] {'a':(1)4}, dimensions={0}", 3, 1),
        ("all-gather(%x), replica_groups=mesh['a'=8,'b'=1] {'a':(2)4}, dimensions={0}", 3, 0),
    ],
)
def test_what_eight_devices_on_two_hosts_send(text, total, between):
    found = line(f"ROOT %y = f32[6,5]{{1,0:T(8,128)}} {text}")
    assert found == Sent(pytest.approx(total * SIZE), pytest.approx(between * SIZE))


def test_what_runs_meanwhile_counts_when_it_starts_and_once():
    started = line(
        "%s = (f32[6,5]{1,0:T(8,128)}, f32[48,5]{1,0:T(8,128)S(1)}) all-gather-start(%x), "
        "replica_groups=[1,8]<=[8], dimensions={0}\n"
        "  ROOT %d = f32[48,5]{1,0:T(8,128)} all-gather-done(%s)"
    )
    assert started.total == 7 * SIZE
    wrapped = line(
        "%s = ((f32[6,5]), f32[6,5], u32[]) async-start(%x), calls=%part\n"
        "  ROOT %d = f32[6,5] async-done(%s), calls=%part"
    )
    assert wrapped.total == 7 / 4 * SIZE
    of_tpu = line(
        "%a = f32[48,5] fusion(%x), kind=kCustom, calls=%begins\n"
        "  %b = f32[48,5] fusion(%x), kind=kOutput, calls=%goes_on\n"
        "  ROOT %d = f32[48,5] fusion(%x), kind=kCustom, calls=%goes_on"
    )
    assert of_tpu.total == 7 * SIZE


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("while(%from_one), condition=%unknown, body=%steps", "runs an unknown number of times"),
        ("fusion(%x), kind=kCustom, calls=%goes_on", "a chain of collectives never begins"),
        ("ragged-all-to-all(%x), replica_groups={{0,1}}", "what ragged-all-to-all sends"),
        ("all-gather(%x), dimensions={0}", "HLO of another form: no .*replica_groups"),
    ],
)
def test_what_is_not_known_is_no_number(text, message):
    with pytest.raises(NotImplementedError, match=message):
        line(f"ROOT %y = f32[6,5]{{1,0:T(8,128)}} {text}")
