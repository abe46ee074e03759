"""The public class `Store`."""
