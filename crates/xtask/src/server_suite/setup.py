"""Gets llama.cpp's tests and what they need, and makes the small models: setup.py FOLDER BILAYER SHARED VERSION."""
import hashlib
import json
import pathlib
import subprocess
import sys
import tarfile
import urllib.request

PACKAGES = [
    "aiohttp~=3.9", "filelock~=3.16", "gguf", "numpy", "openai~=2.14.0", "prometheus-client~=0.20.0", "pytest~=8.3",
    "pytest-timeout", "pytest-xdist~=3.6", "requests~=2.32", "wget~=3.2",
]


def fetch(folder, version):
    about = json.load(urllib.request.urlopen(f"https://pypi.org/pypi/llama-cpp-python/{version}/json"))
    source = next(file for file in about["urls"] if file["packagetype"] == "sdist")
    archive = folder / source["filename"]
    if not archive.exists():
        data = urllib.request.urlopen(source["url"]).read()
        assert hashlib.sha256(data).hexdigest() == source["digests"]["sha256"], "the archive is damaged"
        archive.write_bytes(data)
    wanted = ("/vendor/llama.cpp/tools/server/tests/", "/vendor/llama.cpp/models/templates/")
    with tarfile.open(archive) as tar:
        members = [m for m in tar.getmembers() if any(part in m.name for part in wanted)]
        tar.extractall(folder, members, filter="data")
    tests = next(folder.glob("*/vendor/llama.cpp/tools/server/tests"))
    (folder / "tests.path").write_text(str(tests))


def with_infill(source, target):
    from gguf import GGUFReader, GGUFValueType, GGUFWriter

    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        if field.types[0] == GGUFValueType.ARRAY:
            writer.add_array(key, field.contents())
        else:
            writer.add_key_value(key, field.contents(), field.types[0])
    for number, name in enumerate(["pre", "suf", "mid"]):
        writer.add_uint32(f"tokenizer.ggml.fim_{name}_token_id", 13 + number)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    folder, bilayer, shared = (pathlib.Path(argument) for argument in sys.argv[1:4])
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    fetch(folder, sys.argv[4])
    models = folder / "models"
    models.mkdir(exist_ok=True)
    for source, name in [("stories260k/hf", "stories260K.gguf"), ("all-minilm-l6-v2/model", "minilm.gguf")]:
        convert = [bilayer, "convert", shared / source, "--outfile", models / name, "--outtype", "f16"]
        subprocess.run(convert, check=True, stderr=subprocess.DEVNULL)
    with_infill(str(models / "stories260K.gguf"), str(models / "infill.gguf"))
    (folder / "report.txt").unlink(missing_ok=True)
    (folder / "shim.py").chmod(0o755)


if __name__ == "__main__":
    main()
