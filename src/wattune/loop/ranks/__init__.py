"""A session over the ranks of a data-parallel job: rank 0 chooses for all.

meeting        the ranks' arguments, compared before anything is opened
channel        messages through the job's store; the end of a job in which a rank is lost
agreement      the same step at the same time on all ranks, and the same places of their loops
following      a session on the other ranks
remote_board   their boards, each opened and restored by its own rank
compute_timer  the time that a rank computes, without waiting for the others
gradient_sync  gradients are averaged over the ranks once per optimizer step
"""
