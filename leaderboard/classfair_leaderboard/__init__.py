"""Records to tables, without torch.

``report`` reads a results folder, ``write`` makes files of what it found, ``render_terminal`` makes
something that rich prints.
"""

from classfair_leaderboard.groups import RANKINGS
from classfair_leaderboard.reporting import Report, report, write
from classfair_leaderboard.terminal import render_terminal

__all__ = ["RANKINGS", "Report", "render_terminal", "report", "write"]
