"""What was said: lines with times from subtitles and speech, and the search for words in them. No model is needed.

`subtitles` reads files beside a video, `streams` those inside it, `speech` writes down what is spoken. `reading` brings
the tables of `lines` up to date, and `words` decides what counts as the same word.
"""
