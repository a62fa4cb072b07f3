"""WAV files, and what is told of sound."""

from __future__ import annotations

import io
import wave

import numpy as np
import pytest

from atoll.core.errors import ConfigError, DataError
from atoll.crossmodal import Acoustic, read_speech, read_wave
from atoll.crossmodal.acoustic import RATE, resample


def written(samples, rate=RATE, width=2, channels=1):
    raw = io.BytesIO()
    with wave.open(raw, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(samples)
    return raw.getvalue()


def tone(frequency, seconds=0.5, rate=RATE, height=8000):
    return height * np.sin(2 * np.pi * frequency * np.arange(int(seconds * rate)) / rate)


def test_files_of_all_widths_and_channels_are_the_same_sound():
    sound = tone(440).astype(np.int16)
    plain = read_wave(written(sound.tobytes()), "x")
    assert np.array_equal(plain, sound)
    assert np.array_equal(read_wave(written(np.repeat(sound, 2).tobytes(), channels=2), "x"), sound)
    assert np.array_equal(read_wave(written((sound.astype("<i4") << 16).tobytes(), width=4), "x"), sound)
    thirds = (sound.astype("<i4") << 8).view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    assert np.array_equal(read_wave(written(thirds, width=3), "x"), sound)
    bytes_ = ((sound.astype(np.int32) + 128) // 256 + 128).astype(np.uint8).tobytes()
    assert np.abs(read_wave(written(bytes_, width=1), "x").astype(int) - sound).max() <= 128


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000])
def test_another_rate_has_the_same_tone(rate):
    found = resample(tone(440, 0.5, rate), rate)
    assert len(found) == 8000
    assert np.abs(found - tone(440))[400:-400].max() < 8  # of 8000


def test_what_is_no_sound_is_refused_by_name():
    for content, what in ((b"RIFF", "no WAV file"), (b"", "no WAV file"), (written(b""), "no sound")):
        with pytest.raises(DataError, match=what) as error:
            read_wave(content, "calls/one.wav")
        assert "calls/one.wav" in str(error.value)


def test_frames_are_a_tenth_of_a_second_and_tell_pitch_and_loudness():
    tell = Acoustic()
    frames = tell(tone(200).astype(np.int16))
    assert frames.shape == (5, 64)
    assert frames.dtype == np.float32
    assert np.isfinite(frames).all()
    pitch = 2
    assert abs(frames[2, pitch] - np.log(2.0)) < 0.02
    assert abs(tell(tone(100).astype(np.int16))[2, pitch]) < 0.02
    loud, quiet = tell(tone(200).astype(np.int16)), tell((tone(200) / 10).astype(np.int16))
    assert abs((loud - quiet)[2, 0] - np.log(100)) < 0.01  # ten times the height, a hundred times the energy
    for odd in (np.zeros(16_000), np.zeros(3), tone(200, 0.01)):
        assert np.isfinite(tell(odd.astype(np.int16))).all()


def test_own_cepstra_are_the_definition():
    """One piece by loops, from the formulas of the mel scale and the cosine transform."""
    sound = np.random.default_rng(0).normal(0, 1000, 400).astype(np.int16)
    piece = sound / 32768
    shaped = np.append(piece[0], piece[1:] - 0.97 * piece[:-1]) * np.hamming(400)
    power = [abs(sum(shaped * np.exp(-2j * np.pi * k * np.arange(400) / 512))) ** 2 for k in range(257)]
    mel = lambda f: 2595 * np.log10(1 + f / 700)  # noqa: E731
    edges = [700 * (10 ** (mel(8000) * i / 27 / 2595) - 1) for i in range(28)]
    bands = []
    for low, middle, high in zip(edges, edges[1:], edges[2:], strict=False):
        weights = [
            max(0.0, min((f - low) / (middle - low), (high - f) / (high - middle))) for f in np.arange(257) * 31.25
        ]
        bands.append(np.log(np.dot(weights, power) + 1e-10))
    cepstra = [
        np.sqrt(2 / 26) * sum(b * np.cos(np.pi / 26 * q * (i + 0.5)) for i, b in enumerate(bands)) for q in range(1, 13)
    ]
    assert np.allclose(Acoustic()(sound)[0, 4:16], cepstra, rtol=1e-4, atol=1e-4)


def test_other_features_are_refused():
    with pytest.raises(ConfigError, match="features='mfcc'"):
        Acoustic(features="mfcc")


def test_a_folder_of_speech_is_read_once(tmp_path, monkeypatch):
    pytest.importorskip("pocketsphinx")
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    calls = tmp_path / "calls"
    calls.mkdir()
    for name, frequency in (("a.wav", 200), ("b.wav", 300)):
        (calls / name).write_bytes(written(tone(frequency, 0.2).astype(np.int16).tobytes()))
    (calls / "labels.csv").write_text("file,label\na.wav,2.4\nb.wav,-1\n", "utf-8")
    first = read_speech(calls)
    assert first.counts == {"negative": 1, "positive": 1}
    assert first.width == 64
    monkeypatch.setattr("atoll.crossmodal.phones.SpeechToPhone.decoder", lambda self: pytest.fail("decoded anew"))
    again = read_speech(calls)
    assert all(np.array_equal(a, b) for a, b in zip(first.inputs, again.inputs, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(first.phones, again.phones, strict=True))
    (calls / "labels.csv").write_text("file,label\n../a.wav,1\n", "utf-8")
    with pytest.raises(DataError, match="no file of the folder"):
        read_speech(calls)
    (calls / "labels.csv").write_text("fil,label\na.wav,1\n", "utf-8")
    with pytest.raises(DataError, match="Did you mean"):
        read_speech(calls)
    (calls / "labels.csv").unlink()
    with pytest.raises(DataError, match=r"no labels\.csv"):
        read_speech(calls)
