import sys

from eqprop.cli import main

sys.exit(main())
