"""What tests of kbroker, and of programs that use it, build upon: fakes that keep the contract of the real thing."""
