"""The parts that every command uses: its options, its connection to a server or data folder, and how it
prints results, progress and errors."""
