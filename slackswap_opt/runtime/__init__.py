"""The part that knows PyTorch: profiles of training steps, and what runs them under a plan."""

from slackswap_opt.runtime.fake import profile_fake
from slackswap_opt.runtime.passes import ProfileError
from slackswap_opt.runtime.profile import Profile
from slackswap_opt.runtime.profiler import Profiler, profile

__all__ = ["Profile", "ProfileError", "Profiler", "profile", "profile_fake"]
