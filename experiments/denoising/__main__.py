import sys

from experiments.denoising.run import main

sys.exit(main())
