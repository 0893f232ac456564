"""Tests of slackswap_opt; each file mirrors the module of its name."""
