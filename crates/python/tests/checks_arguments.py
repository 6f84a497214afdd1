"""Checks of arguments: their names in messages, their types, and values without a meaning."""

import enum
import os
import pathlib
import tempfile
from fractions import Fraction

import bilayer
from bilayer import _arguments, _native
from checking import DEMO, check, opened, raised

#: A machine with two GPUs, for plans.
TWO_GPUS = """
cpu = { name = "c", memory = "64GiB", read_gbps = 60, tops = 2, submit_us = 5, kernel_us = 2 }
[[gpu]]
name = "a"
memory = "8GiB"
read_gbps = 800
tops = 90
upload_gbps = 20
download_gbps = 20
submit_us = 20
kernel_us = 4
wait_us = 20
[[gpu]]
name = "b"
memory = "6GiB"
read_gbps = 400
tops = 50
upload_gbps = 20
download_gbps = 20
submit_us = 20
kernel_us = 4
wait_us = 20
"""


class Real:
    """A number of another package's type, as NumPy's scalars are."""

    def __init__(self, value):
        self.value = value

    def __float__(self):
        return float(self.value)


class Whole(Real):
    def __index__(self):
        return self.value


def nested(depth):
    value = {}
    for _ in range(depth):
        value = {"a": [value]}
    return value


@check
def messages_name_arguments():
    with opened() as model:
        for part, call in {
            "context is 1099511627776": lambda: bilayer.Bilayer(DEMO, context=2**40),
            "checkpoints is 1000000000": lambda: bilayer.Bilayer(DEMO, checkpoints=10**9),
            "temperature is -1": lambda: next(model.generate("a", temperature=-1)),
            "top_k is -1": lambda: model.generate("a", top_k=-1),
            "top_p is 2": lambda: next(model.generate("a", top_p=2)),
            "draft_max is 65": lambda: bilayer.Bilayer(DEMO, gpu_layers=0, lookup=True, draft_max=65),
            "draft_p_min is 1.5": lambda: bilayer.Bilayer(DEMO, gpu_layers=0, lookup=True, draft_p_min=1.5),
            "draft_gpu_layers is most": lambda: bilayer.Bilayer(DEMO, draft_gpu_layers="most"),
            "ubatch_size is 0": lambda: bilayer.Bilayer(DEMO, gpu_layers=0, ubatch_size=0),
            "tensor_split[1] is nan": lambda: bilayer.Bilayer(DEMO, tensor_split=[1, float("nan")]),
            "tensor_split[0] is -1.0": lambda: bilayer.Bilayer(DEMO, tensor_split=[-1]),
            "tensor_split[0] is inf": lambda: bilayer.Bilayer(DEMO, tensor_split=[float("inf")]),
            "temp and temperature are the same": lambda: model.generate("a", temp=0.1, temperature=0.2),
            "split_mode is row; it must be layer or none": lambda: bilayer.Bilayer(DEMO, split_mode="row"),
            "main_gpu is -1; it must be at least 0": lambda: bilayer.Bilayer(DEMO, main_gpu=-1),
            "op_offload is on; it must be auto, never or a number of tokens": lambda: bilayer.Bilayer(DEMO, op_offload="on"),
            "overlap is never; it must be auto, on or off": lambda: bilayer.Bilayer(DEMO, overlap="never"),
            "cpu_level is sse9; it must be scalar": lambda: bilayer.Bilayer(DEMO, cpu_level="sse9"),
            "cache_type is q2; it must be f32, f16": lambda: bilayer.Bilayer(DEMO, cache_type=["f16", "q2"]),
            "cache_type is [f16]; it must be a type, or those": lambda: bilayer.Bilayer(DEMO, cache_type=["f16"]),
            "simulate is a text of 1 lines; it must be a described machine in TOML: ": lambda: bilayer.Bilayer(DEMO, simulate="a"),
            "control_vector_layers is [3, 2]; it must be a list of": lambda: bilayer.Bilayer(DEMO, control_vector_layers=(3, 2)),
            "gpu_bytes[1] is -1; it must be at least 0": lambda: bilayer.Bilayer(DEMO, gpu_bytes=[1, -1]),
            "lora is [NaN]; it must be nothing: the model has no adapters": lambda: next(model.generate("a", lora=[float("nan")])),
        }.items():
            raised(bilayer.UsageError, part, call)
        raised(bilayer.MissingFileError, "missing.gguf", lambda: bilayer.Bilayer(DEMO, lora={"missing.gguf": 0.5}))
        for part, call in {
            "ignore_eos must be True or False, not int": lambda: model.generate("a", ignore_eos=1),
            "json_object must be True or False, not str": lambda: model.generate("a", json_object="yes"),
            "truncate must be True or False, not int": lambda: model.embed(["a"], truncate=1),
            "add_special must be True or False, not int": lambda: model.tokenize("a", add_special=1),
            "regex must be a text, not int": lambda: model.generate("a", regex=1),
            "stop must be a text or a list of texts, not int": lambda: model.generate("a", stop=1),
            "stop[0] must be a text, not int": lambda: model.generate("a", stop=[1]),
            "prompt must be a text, a list of tokens or a list of messages, not int": lambda: model.generate(1),
            "tools must be a list of dicts, not dict": lambda: model.generate("a", tools={}),
            "cache_type must be a text or a list of texts, not int": lambda: bilayer.Bilayer(DEMO, cache_type=5),
            "cache_type must be a text, not NoneType": lambda: bilayer.Bilayer(DEMO, cache_type=None),
            "pooling must be a text, not int": lambda: bilayer.Bilayer(DEMO, pooling=1),
            "mtp must be True or False, not int": lambda: bilayer.Bilayer(DEMO, mtp=1),
            "device must be a text or a list of texts, not int": lambda: bilayer.Bilayer(DEMO, device=0),
            "tensor_split[0] must be a number, not str": lambda: bilayer.Bilayer(DEMO, tensor_split=["a"]),
            "override_tensor must be a dict of patterns and devices, not list": lambda: bilayer.Bilayer(DEMO, override_tensor=[1]),
            "override_tensor['a'] must be an integer, not str": lambda: bilayer.Bilayer(DEMO, override_tensor={"a": "cpu"}),
            "cache_on_cpu must be True or False, not int": lambda: bilayer.Bilayer(DEMO, cache_on_cpu=1),
            "draft_model must be a path, not int": lambda: bilayer.Bilayer(DEMO, draft_model=1),
            "cache_dir must be a path, not bytes": lambda: bilayer.Bilayer(DEMO, cache_dir=b"a"),
            "lora[0] must be a path, not bytes": lambda: bilayer.Bilayer(DEMO, lora=[(b"a", 1)]),
            "split_mode must be a text, not int": lambda: bilayer.Bilayer(DEMO, split_mode=1),
            "main_gpu must be an integer, not str": lambda: bilayer.Bilayer(DEMO, main_gpu="0"),
            "op_offload must be an integer, not float": lambda: bilayer.Bilayer(DEMO, op_offload=1.5),
            "overlap must be a text, not bool": lambda: bilayer.Bilayer(DEMO, overlap=True),
            "remeasure must be True or False, not int": lambda: bilayer.Bilayer(DEMO, remeasure=1),
            "cpu_level must be a text, not int": lambda: bilayer.Bilayer(DEMO, cpu_level=2),
            "no_mmap must be True or False, not int": lambda: bilayer.Bilayer(DEMO, no_mmap=1),
            "unfused must be True or False, not str": lambda: bilayer.Bilayer(DEMO, unfused="yes"),
            "gpu_bytes must be an integer, not float": lambda: bilayer.Bilayer(DEMO, gpu_bytes=1.5),
            "lora[0] must be a path, or a pair of a path and a strength, not int": lambda: bilayer.Bilayer(DEMO, lora=[1]),
            "lora[0] must be a number, not str": lambda: bilayer.Bilayer(DEMO, lora=[("a", "b")]),
            "control_vector_layers must be a pair of the first and the last layer, not int": lambda: bilayer.Bilayer(
                DEMO, control_vector_layers=3
            ),
            "metadata must be a dict of keys and values, not list": lambda: bilayer.Bilayer(DEMO, metadata=["a"]),
            "metadata['a'] must be a number, not NoneType": lambda: bilayer.Bilayer(DEMO, metadata={"a": None}),
            "lora must be a list of numbers, not float": lambda: model.generate("a", lora=0.5),
            "progress must be a function, not int": lambda: bilayer.Bilayer(DEMO, progress=1),
            "model must be a path, not int": lambda: bilayer.Bilayer(1),
            "Bilayer() got an unexpected keyword argument 'foo'": lambda: bilayer.Bilayer(DEMO, foo=1),
            "plan() got an unexpected keyword argument 'foo'": lambda: bilayer.plan(DEMO, foo=1),
        }.items():
            raised(TypeError, part, call)
        assert model.generate("a", stop=None, tools=None, max_tokens=1).text
    with opened(device=None, tensor_split=None) as model:
        assert model.context == 512
    placed = {"override_tensor": {"attn_k": 0}, "cache_on_cpu": True, "margin_bytes": 1 << 30, "ubatch_size": 64}
    with opened(lookup=True, draft_max=2, draft_min=1, draft_p_min=0.5, draft_gpu_layers=0, **placed) as model:
        assert model.generate("ROMEO:", max_tokens=4).text()


@check
def every_setting_of_the_library_is_an_argument():
    """A setting that is new in the library needs a default, a type, a line of the docstring and one of docs/python.md."""
    names = set(_native.settings())
    assert names == set(_arguments._DEFAULTS), names ^ set(_arguments._DEFAULTS)
    typed = {"gpu_layers", *_arguments.Settings.__annotations__}
    assert names == typed, names ^ typed
    heads = [line.strip() for line in bilayer.Bilayer.__doc__.splitlines() if line.startswith("    ") and " : " in line]
    documented = {name.strip() for head in heads for name in head.split(" : ")[0].split(",")}
    assert names <= documented, names - documented
    page = (pathlib.Path(__file__).parents[3] / "docs" / "python.md").read_text()
    missing = [name for name in names if f"`{name}`" not in page]
    assert not missing, missing


@check
def paths_keep_the_encoding_of_the_file_system():
    """The native module takes texts as UTF-8, which a path need not be."""
    given = {"expert_counts": "a", "cache_dir": "a", "draft_model": "a", "lora": "a", "control_vector": {"a": 2}}
    settings = dict(_arguments._settings("Bilayer", given))
    found = [settings[name] for name in ("expert_counts", "cache_dir", "draft_model")]
    found += [settings["lora"][0], settings["control_vector"][0][0]]
    assert all(isinstance(path, pathlib.Path) for path in found), found
    with tempfile.TemporaryDirectory() as folder:
        path = os.fsdecode(os.fsencode(folder) + b"/\xe4.gguf")
        for settings in ({"draft_model": path}, {"lora": path}, {"lora": {path: 1}}, {"control_vector": [path]}):
            raised(bilayer.MissingFileError, "no such file", lambda: bilayer.Bilayer(DEMO, gpu_layers=0, **settings))


@check
def settings_say_what_runs_where():
    def planned(gpu_layers="all", **settings):
        plan = bilayer.plan(DEMO, gpu_layers, simulate=TWO_GPUS, context=256, **settings)
        devices = [(d["label"], d["budget_bytes"], d["weight_bytes"], d["kv_bytes"]) for d in plan.data["devices"]]
        return plan.map, plan.data.get("streaming"), devices

    seen = []
    for settings in (
        {},
        {"split_mode": "none"},
        {"split_mode": "none", "main_gpu": 1},
        {"gpu_bytes": [2 << 30, 3 << 30]},
        {"margin_bytes": [2 << 30, 3 << 30]},
        {"tensor_split": [1, 3]},
        {"gpu_layers": 1, "op_offload": 64},
        {"gpu_layers": 1, "op_offload": "never"},
        {"cache_type": ["q8_0", "f16"]},
    ):
        found = planned(**settings)
        assert found not in seen, f"{settings} changes nothing"
        seen.append(found)
    raised(bilayer.UsageError, "main_gpu is 2", lambda: planned(main_gpu=2))
    with bilayer.Bilayer(DEMO, "all", simulate=TWO_GPUS, context=64, overlap="off") as model:
        assert model.generate("ROMEO:", max_tokens=2, ignore_eos=True).text()


@check
def settings_say_how_a_model_is_computed():
    def first(**settings):
        with opened(threads=1, **settings) as model:
            [token] = model.generate("ROMEO: O me!", max_tokens=1, temperature=0, logprobs=1)
            return token.logprob

    usual = first()
    for settings in (
        {"no_mmap": True, "split_mode": "layer", "op_offload": "auto", "overlap": "auto"},
        {"unfused": True},
        {"cpu_level": "scalar", "ubatch_size": 2},
        {"cache_type": ("q8_0", "f16"), "metadata": {"general.name": "other", "{arch}.rope.freq_base": 10000}},
    ):
        assert abs(first(**settings) - usual) < 0.05, settings
    with opened(metadata={"general.name": "other", "{arch}.context_length": 99}, context=0) as model:
        assert model.metadata["general.name"] == "other" and model.context == 99
    with tempfile.TemporaryDirectory() as folder:
        times = lambda: [os.stat(os.path.join(folder, name)).st_mtime_ns for name in sorted(os.listdir(folder))]
        opened(cache_dir=folder).close()
        assert not times(), "without a GPU nothing is measured unasked"
        opened(cache_dir=folder, remeasure=True).close()
        before = times()
        assert before
        opened(cache_dir=folder).close()
        assert times() == before


@check
def loading_tells_its_progress():
    told = []
    opened(progress=lambda *progress: told.append(progress)).close()
    assert len(told) > 2 and {stage for stage, _, _ in told} == {"loading"}, told
    assert told == sorted(told) and told[-1][1] == told[-1][2] > 0, told

    def failed(*_):
        raise ZeroDivisionError("in progress")

    raised(ZeroDivisionError, "in progress", lambda: opened(progress=failed))


@check
def numbers_of_other_types_are_taken():
    with opened() as model:
        plain = model.generate("ROMEO:", max_tokens=12, temperature=0.5, top_k=3).text()
        for half in (Real(0.5), Fraction(1, 2)):
            assert plain == model.generate("ROMEO:", max_tokens=12, temperature=half, top_k=Whole(3)).text()
        assert next(model.generate("ROMEO:", logit_bias={Whole(70): Real(1000)})).id == 70
        for wrong in (True, "1", None, 1j, [1]):
            raised(TypeError, "temperature must be a number", lambda: model.generate("a", temperature=wrong))


@check
def what_cannot_be_sent_is_named():
    user, circle = {"role": "user", "content": "a"}, []
    circle.append(circle)
    function = {"name": "f", "parameters": {}}
    huge = enum.IntEnum("Huge", {"VALUE": 10**5000}).VALUE
    with opened(chat_template="chatml") as model:
        for part, call in {
            "top_k is an integer of 16610 bits": lambda: model.generate("a", top_k=10**5000),
            "max_tokens is an integer of": lambda: model.generate("a", max_tokens=huge),
            "logit_bias is an integer of": lambda: model.generate("a", logit_bias={10**5000: 1}),
            "json_schema has more than 100 levels": lambda: model.generate("a", json_schema=nested(900)),
            "json_schema.a is an integer of": lambda: model.generate("a", json_schema={"a": 10**5000}),
            "tools has more than 100 levels": lambda: model.chat([user], tools=[nested(900)]),
            "messages has more than 100 levels": lambda: model.chat([user | {"x": circle}]),
            "tools[0] has an empty name": lambda: model.chat([user], tools=[{"function": {"name": ""}}]),
            "tools[1] and tools[0] have the name 'f'": lambda: model.chat([user], tools=[{"function": function}, function]),
        }.items():
            raised(bilayer.UsageError, part, call)
        raised(TypeError, "logit_bias must be a dict of tokens and numbers, not list", lambda: model.generate("a", logit_bias=[1]))
        for call in (model.detokenize, lambda tokens: next(model.generate(tokens))):
            raised(bilayer.UsageError, "1000000000", lambda: call([10**9]))
        assert model.generate("a", json_schema=nested(20), max_tokens=1).text
