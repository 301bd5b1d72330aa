"""What turns four functions of a component into install, verify, repair, dry run and removal."""
