"""Hears WAV files: a script for the environment that has the recogniser (requirements/dev.txt).

Reads paths from stdin, one a line, and answers each with a JSON string: the words heard.
"""

import array
import json
import sys
import wave

from moonshine_voice import ModelArch, Transcriber, get_model_path

#: The clip is one piece: cut into pieces, words are heard where there are none.
OPTIONS = {"vad_threshold": "0.0"}
#: Silence before and after it, as recordings have it.
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
