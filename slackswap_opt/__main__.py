"""Lets ``python -m slackswap_opt`` stand for the command `slackswap`."""

import sys

from slackswap_opt.cli import main

sys.exit(main())
