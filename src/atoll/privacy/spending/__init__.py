"""What a ledger says that parties have spent, and what they demand of jobs that would spend more."""
