"""The report of what analytics computed, as one page."""

from angelia.pipeline.report.page import page as page
