// Package assign decides which worker of the dedup stage gets which task, so that a task goes to a process that
// already stores the task's rows. The decision is a preference only: any process can restore any task from its
// changelog.
//
// # What it owns
//
//   - Assign computes the assignment as a pure function of the members of a group. NextOwners computes the
//     assignment of a topic that the members do not read yet.
//   - Warmth is what a member tells the leader: the changelog positions of the local stores of its process, in
//     at most WarmthBytesMax bytes.
//   - NewBalancer returns the balancer of the group. A member also offers cooperative-sticky: a group that
//     contains workers of older builds keeps using it.
//
// It may import dedup, processor/app and franz-go.
//
// # Invariants
//
//   - Each partition goes to exactly one member that reads its topic, or to no member if no member reads the
//     topic.
//   - Loads are as equal as the subscriptions permit. If all members read the same topics, their numbers of
//     tasks differ by 1 at most.
//   - Among the assignments with equal loads, Assign minimises three numbers, in this order: the tasks that
//     leave their owners, the tasks that go to a member without their rows, and the changelog records that are
//     read again.
//   - Equal input yields an equal assignment, whatever the order of the members.
//   - If the warmth of a member is damaged, or was written by another build, the member counts as a member
//     without rows.
//
// # What looks wrong
//
//   - A task may stay with its owner although another member has more of its rows: a move costs more than
//     reading records, because the task stops for two rebalances.
//   - A position counts even if the changelog now begins after it (Kafka may have compacted or deleted the
//     records between): the leader reads no topic in a rebalance, so it cannot know.
//   - Each worker of a process sends the same positions: any worker of the process may get a task, and some
//     workers may not have joined the group yet.
package assign
