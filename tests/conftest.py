"""What several test files share."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    """A directory with a random model of 40,000 parameters and the bundled tokenizer, for what needs no learning."""
    import torch

    import tsqa
    from data import Tokenizer

    torch.manual_seed(0)
    directory = tmp_path_factory.mktemp("toy")
    config = tsqa.T5Config(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_decoder_layers=1, num_heads=2)
    tsqa.T5(config).save_pretrained(directory)
    Tokenizer(ROOT / "assets" / "tiny-t5").save(directory)
    (directory / "args.json").write_text('{"stage": "sft"}')
    return directory
