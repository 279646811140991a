# SPDX-License-Identifier: Apache-2.0
"""Kills a switch under a training, which goes on: an emulated testbed on this machine.

python examples/kill_a_switch.py
"""

import rackhub

with rackhub.up("two-racks") as testbed:
    job = testbed.submit("digits", progress=True)
    job.wait_for(iteration=20)
    testbed.kill("tor1", gone="1 s")
    testbed.impair("w0", "tor0", loss="2 %")
    result = job.wait()

for plan in result.job_summary["plans"]:
    chunks = plan["by_switch"] + plan["by_server"]
    print(f"plan {plan['epoch']}, tree {plan['tree']}: {chunks:,} chunks")
print(f"test accuracy {result.test_accuracy:.3f}, weights right: {result.matches_reference}")
