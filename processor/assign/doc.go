// Package assign decides which worker of the dedup stage gets which task, so that a task
// goes where its rows already are. It is a preference only: a restore is correct in any
// process.
//
// # What it owns
//
//   - Assign is the assignment as a pure function of the members of a group. NextOwners is
//     that of a topic before its members read it.
//   - Warmth is what a member tells the leader: the changelog positions of the local
//     stores of its process, at most WarmthBytesMax.
//   - NewBalancer returns the balancer of the group. A member also offers
//     cooperative-sticky, which a group with older builds keeps using.
//
// It may import dedup, processor/app and franz-go.
//
// # Invariants
//
//   - Each partition goes to one member that reads its topic. Without such a member it
//     goes to none.
//   - Loads are as equal as the subscriptions permit. If all members read the same
//     topics, they differ by one partition at most.
//   - Among these assignments the fewest tasks leave their owners. Among those the fewest
//     go to a member without rows, and then the fewest changelog records are read again.
//   - Equal input yields the equal assignment, in any order of the members.
//   - Data of another build, or damaged data, counts as none.
//
// # What looks wrong
//
//   - A task may go to a colder member than possible, because a move costs more than
//     records: the task stops for two rebalances.
//   - A position counts although the changelog may begin after it: the leader reads no
//     topic in a rebalance.
//   - Each worker of a process sends the same positions, because any of them may get a
//     task, and some of them may not be in the group yet.
package assign
