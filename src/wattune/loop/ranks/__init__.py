"""A session over the ranks of a data-parallel job: one of them chooses for all.

meeting        the ranks' arguments, compared before anything is opened
channel        messages between rank 0 and the other ranks through the job's store; notices a rank that is gone
leading        the leader's part: the same step at the same time on all ranks
following      a session's run on the other ranks
gradient_sync  gradients are averaged over the ranks once per optimizer step
"""
