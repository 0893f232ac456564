"""The part that knows PyTorch: profiles of training steps, and what runs them under a plan."""

from slackswap_opt.runtime.profile import Profile, ProfileError, Profiler, profile

__all__ = ["Profile", "ProfileError", "Profiler", "profile"]
