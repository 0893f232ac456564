"""The part that knows PyTorch: profiles of training steps, and what runs them under a plan."""

from slackswap_opt.runtime.budget import MemoryBudget, PlanLeftError, PlanLeftWarning
from slackswap_opt.runtime.export import Policies, checkpoint_policies
from slackswap_opt.runtime.fake import profile_fake
from slackswap_opt.runtime.largest import largest_batch
from slackswap_opt.runtime.links import LinkRates, measure_link
from slackswap_opt.runtime.passes import ProfileError
from slackswap_opt.runtime.profile import Profile
from slackswap_opt.runtime.profiler import Profiler, profile
from slackswap_opt.runtime.replay import ChangedArgumentError
from slackswap_opt.runtime.rows import MemoryRow
from slackswap_opt.runtime.verify import VerificationError

__all__ = [
    "ChangedArgumentError",
    "LinkRates",
    "MemoryBudget",
    "MemoryRow",
    "PlanLeftError",
    "PlanLeftWarning",
    "Policies",
    "Profile",
    "ProfileError",
    "Profiler",
    "VerificationError",
    "checkpoint_policies",
    "largest_batch",
    "measure_link",
    "profile",
    "profile_fake",
]
