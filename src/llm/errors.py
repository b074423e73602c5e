"""The one exception type that means *the input is at fault*.

It stands alone so that command lines can catch it without importing torch or a harness.
"""


class InputError(ValueError):
    """What was given cannot be used: the message is one sentence naming it, what is allowed and what to do.

    Command lines print the message without a traceback and exit with code 2.
    """
