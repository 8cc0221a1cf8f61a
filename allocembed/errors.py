"""The errors a user can mend, gathered for the command line."""

from allocembed.backbones.base import BackboneError
from allocembed.budget import BudgetError
from allocembed.video import VideoError

USER_ERRORS = (VideoError, BudgetError, BackboneError, ValueError, OSError)
