"""Recognises WAV files: a script for the environment that has the recogniser
(requirements/dev.txt).

Reads paths from stdin, one per line, and answers each with a JSON string: the words heard.
"""

import array
import json
import sys
import wave

from moonshine_voice import ModelArch, Transcriber, get_model_path

#: Keeps the clip in one piece: split into pieces, words are heard that are not there.
OPTIONS = {"vad_threshold": "0.0"}
#: Silence before and after the clip, as in recordings.
MARGIN_S = 0.3


def main() -> None:
    """Answer until stdin ends."""
    model = get_model_path("tiny-en")
    with Transcriber(str(model), ModelArch.TINY, options=OPTIONS) as transcriber:
        for line in sys.stdin:
            with wave.open(line.rstrip("\n")) as speech:
                rate, pcm = speech.getframerate(), speech.readframes(speech.getnframes())
            margin = [0.0] * round(MARGIN_S * rate)
            samples = [value / 32768 for value in array.array("h", pcm)]
            heard = transcriber.transcribe_without_streaming(margin + samples + margin, rate)
            print(json.dumps(" ".join(part.text for part in heard.lines)), flush=True)


if __name__ == "__main__":
    main()
