"""The parts of the background job `improve`, which tries what makes a published model better."""
