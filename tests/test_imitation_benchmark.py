"""The benchmark of imitation tells what observations explain from what they do not."""

import numpy as np
import pytest
from scripts import load_script


def test_explained_variance_is_that_of_what_is_observed(repository, monkeypatch):
    """Of a sum of an observed and an unobserved part of equal variance, half is explained."""
    monkeypatch.syspath_prepend(repository / "benchmarks")
    benchmark = load_script(repository / "benchmarks" / "imitation.py")
    random = np.random.default_rng(0)
    inputs = random.normal(size=(20_000, 3)).astype(np.float32)
    hidden = random.normal(size=20_000)
    targets = np.stack([np.tanh(inputs[:, 0]), inputs[:, 1] + hidden, hidden], axis=1).astype(np.float32)
    shares, variances = benchmark.explained_variance(inputs, targets, (32, 32), 60)
    assert shares[0] > 0.98 and shares[1] == pytest.approx(0.5, abs=0.05) and abs(shares[2]) < 0.05
    np.testing.assert_allclose(variances[1:], (2.0, 1.0), rtol=0.15)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [("--script", "nobody", "unknown script of attacker"), ("--role", "nobody", "roles: attacker, defender")],
)
def test_unknown_names_are_refused_in_one_line(repository, monkeypatch, capsys, option, value, message):
    monkeypatch.syspath_prepend(repository / "benchmarks")
    benchmark = load_script(repository / "benchmarks" / "imitation.py")
    monkeypatch.setattr("sys.argv", ["imitation.py", option, value, "env=f110"])
    with pytest.raises(SystemExit, match="2"):
        benchmark.main()
    assert message in capsys.readouterr().err.splitlines()[-1]
