(* L R = M at one block of a bridge (src/evercount/factorizations/laplace_bridge.proof.md, Lemma 2): with true sums in the
   place of noise, each boundary inside a block is the true running sum, whatever the weight alpha. *)

Require Import Reals List Lra.
Import ListNotations.
Open Scope R_scope.

Fixpoint sum (children : list R) : R :=
  match children with
  | [] => 0
  | x :: rest => x + sum rest
  end.

Lemma sum_app : forall a b, sum (a ++ b) = sum a + sum b.
Proof. induction a; simpl; intros; [lra | rewrite IHa; lra]. Qed.

(* the boundary after the first i children, from the noise at both ends of the block *)
Definition boundary (alpha start stop : R) (children : list R) (i : nat) : R :=
  alpha * (start + sum (firstn i children)) + (1 - alpha) * (stop - sum (skipn i children)).

Theorem boundaries_are_running_sums : forall alpha start children i,
  boundary alpha start (start + sum children) children i = start + sum (firstn i children).
Proof.
  intros; unfold boundary.
  rewrite <- (firstn_skipn i children) at 2. rewrite sum_app. ring.
Qed.
