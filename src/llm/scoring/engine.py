"""The scoring engine behind both doors."""

from llm.scoring.plain import PlainScorer


class ScoringEngine(PlainScorer):
    """Scores (context, continuation) requests; the same request gives the same bits in any company."""
