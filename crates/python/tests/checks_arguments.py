"""Checks of arguments: their names in messages, their types, and values without a meaning."""

import enum
from fractions import Fraction

import bilayer
from checking import DEMO, check, opened, raised


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
        }.items():
            raised(bilayer.UsageError, part, call)
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
            "cache_type must be a text, not int": lambda: bilayer.Bilayer(DEMO, cache_type=5),
            "pooling must be a text, not int": lambda: bilayer.Bilayer(DEMO, pooling=1),
            "mtp must be True or False, not int": lambda: bilayer.Bilayer(DEMO, mtp=1),
            "device must be a text or a list of texts, not int": lambda: bilayer.Bilayer(DEMO, device=0),
            "tensor_split[0] must be a number, not str": lambda: bilayer.Bilayer(DEMO, tensor_split=["a"]),
            "override_tensor must be a dict of patterns and devices, not list": lambda: bilayer.Bilayer(DEMO, override_tensor=[1]),
            "override_tensor['a'] must be an integer, not str": lambda: bilayer.Bilayer(DEMO, override_tensor={"a": "cpu"}),
            "cache_on_cpu must be True or False, not int": lambda: bilayer.Bilayer(DEMO, cache_on_cpu=1),
            "draft_model must be a path, not int": lambda: bilayer.Bilayer(DEMO, draft_model=1),
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
