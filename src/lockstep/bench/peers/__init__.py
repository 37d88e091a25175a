"""The systems that Lockstep is compared with, each as a process of its own."""
