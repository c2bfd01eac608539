"""Exit codes of the command line."""

OK = 0
USER_ERROR = 2  # invalid input
MEMBER_NON_FINITE = 3  # done, but a network became non-finite and was frozen
INTERRUPTED = 130  # stopped, and saved
