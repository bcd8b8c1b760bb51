(* Streams over disjoint ranges cost the largest of their costs, for pure noise
   (src/evercount/privacy/composition.proof.md, section 8), and streams over the same events cost the sum.

   A transcript is a list of answers; stream number k answers with a weight that may depend on all answers before it (an
   adversary that adapts) and on its own data. Sums over coins are in the weights. *)

Require Import Reals List Lra Lia.
Import ListNotations.
Open Scope R_scope.

Section Streams.
  Variable answer data : Type.
  (* the weight of an answer of stream k, after these answers, on this data *)
  Variable weight : nat -> list answer -> answer -> data -> R.
  Hypothesis weights_are_nonnegative : forall k past y x, 0 <= weight k past y x.

  (* the weight of a whole transcript: streams k, k + 1, ... answer in turn; world k is the data of stream k *)
  Fixpoint transcript (k : nat) (past : list answer) (ys : list answer) (world : nat -> data) : R :=
    match ys with
    | [] => 1
    | y :: rest => weight k past y (world k) * transcript (S k) (y :: past) rest world
    end.

  Lemma transcript_nonnegative : forall ys k past world, 0 <= transcript k past ys world.
  Proof.
    induction ys; simpl; intros; [lra |].
    apply Rmult_le_pos; [apply weights_are_nonnegative | apply IHys].
  Qed.

  Lemma transcript_of_equal_data : forall ys k past world world',
    (forall n, (k <= n)%nat -> world n = world' n) -> transcript k past ys world = transcript k past ys world'.
  Proof.
    induction ys; simpl; intros k past world world' same; [reflexivity |].
    rewrite (same k) by lia. rewrite (IHys (S k) _ world world'); [reflexivity |].
    intros n later; apply same; lia.
  Qed.

  (* the price of stream k: the largest ratio of its weights for any two data *)
  Variable price : nat -> R.
  Hypothesis prices_hold : forall k past y x x', weight k past y x <= price k * weight k past y x'.

  (* Disjoint ranges: the unit meets one stream, j, only. *)
  Theorem disjoint_ranges_cost_one_price : forall ys k past j world world', 1 <= price j ->
    (forall n, n <> j -> world n = world' n) ->
    transcript k past ys world <= price j * transcript k past ys world'.
  Proof.
    induction ys as [| y rest IH]; simpl; intros k past j world world' least same; [lra |].
    pose proof (transcript_nonnegative rest (S k) (y :: past) world') as later.
    pose proof (weights_are_nonnegative k past y (world' k)) as now.
    destruct (Nat.eq_dec k j) as [here | elsewhere].
    - subst k. rewrite (transcript_of_equal_data rest (S j) (y :: past) world world');
        [| intros n after; apply same; lia].
      rewrite <- Rmult_assoc. apply Rmult_le_compat_r; [exact later | apply prices_hold].
    - rewrite (same k elsewhere).
      replace (price j * (weight k past y (world' k) * transcript (S k) (y :: past) rest world'))
        with (weight k past y (world' k) * (price j * transcript (S k) (y :: past) rest world')) by ring.
      apply Rmult_le_compat_l; [exact now | apply IH; assumption].
  Qed.

  (* So, whichever stream it is, at most the largest price. *)
  Theorem disjoint_ranges_cost_the_maximum : forall ys k past world world' most, 1 <= most ->
    (forall n, 1 <= price n <= most) ->
    (exists j, forall n, n <> j -> world n = world' n) ->
    transcript k past ys world <= most * transcript k past ys world'.
  Proof.
    intros ys k past world world' most least bounds [j same].
    pose proof (disjoint_ranges_cost_one_price ys k past j world world' (proj1 (bounds j)) same).
    pose proof (transcript_nonnegative ys k past world').
    pose proof (proj2 (bounds j)).
    assert (price j * transcript k past ys world' <= most * transcript k past ys world')
      by (apply Rmult_le_compat_r; assumption).
    lra.
  Qed.

  (* The same events: prices are multiplied, so epsilons are added. *)
  Fixpoint product (k : nat) (ys : list answer) : R :=
    match ys with
    | [] => 1
    | _ :: rest => price k * product (S k) rest
    end.

  Hypothesis prices_are_nonnegative : forall k, 0 <= price k.

  Theorem same_events_cost_the_product : forall ys k past world world',
    transcript k past ys world <= product k ys * transcript k past ys world'.
  Proof.
    induction ys as [| y rest IH]; simpl; intros; [lra |].
    replace (price k * product (S k) rest * (weight k past y (world' k) * transcript (S k) (y :: past) rest world'))
      with ((price k * weight k past y (world' k))
            * (product (S k) rest * transcript (S k) (y :: past) rest world')) by ring.
    apply Rmult_le_compat; [apply weights_are_nonnegative | apply transcript_nonnegative | apply prices_hold | apply IH].
  Qed.
End Streams.
