(* The core of terraces (src/evercount/factorizations/terrace.proof.md, section 1), in whole numbers.

   u gives a number for each tick, z one for each block. The map that turns the noise of one neighbour into that of the
   other adds d to u, and the sum of d over a block to the number of that block. It is one to one, leaves every
   discrepancy as it is, gives the same releases, and changes the exponent of the noise by at most N times sum |d|. *)

Require Import ZArith List Lia Permutation FunctionalExtensionality.
Import ListNotations.
Open Scope Z_scope.

Definition tick := nat.
Definition block := list tick.

Fixpoint sum (f : tick -> Z) (ticks : list tick) : Z :=
  match ticks with
  | [] => 0
  | t :: rest => f t + sum f rest
  end.

Definition size (f : tick -> Z) (ticks : list tick) : Z := sum (fun t => Z.abs (f t)) ticks.

Lemma sum_add : forall f g ticks, sum (fun t => f t + g t) ticks = sum f ticks + sum g ticks.
Proof. induction ticks; simpl; lia. Qed.

Lemma sum_app : forall f a b, sum f (a ++ b) = sum f a + sum f b.
Proof. induction a; simpl; intros; [lia | rewrite IHa; lia]. Qed.

Lemma sum_permutation : forall f a b, Permutation a b -> sum f a = sum f b.
Proof. intros f a b same; induction same; simpl; lia. Qed.

Lemma size_nonnegative : forall f ticks, 0 <= size f ticks.
Proof. unfold size; induction ticks; simpl; lia. Qed.

Lemma abs_sum : forall f ticks, Z.abs (sum f ticks) <= size f ticks.
Proof. unfold size; induction ticks; simpl; lia. Qed.

(* -- the shift ------------------------------------------------------------------------------------------------ *)

Definition discrepancy (u : tick -> Z) (z : block -> Z) (b : block) : Z := z b - sum u b.
Definition shift_u (d u : tick -> Z) : tick -> Z := fun t => u t + d t.
Definition shift_z (d : tick -> Z) (z : block -> Z) : block -> Z := fun b => z b + sum d b.
Definition back (d : tick -> Z) : tick -> Z := fun t => - d t.

Lemma sum_back : forall d ticks, sum (back d) ticks = - sum d ticks.
Proof. unfold back; induction ticks; simpl; lia. Qed.

Theorem discrepancies_stay : forall d u z b,
  discrepancy (shift_u d u) (shift_z d z) b = discrepancy u z b.
Proof. intros; unfold discrepancy, shift_u, shift_z; rewrite sum_add; lia. Qed.

(* Going back undoes the shift, and the other way round: it is a bijection. *)
Theorem shift_is_undone : forall d u z,
  shift_u (back d) (shift_u d u) = u /\ shift_z (back d) (shift_z d z) = z.
Proof.
  intros; split; apply functional_extensionality; intro; unfold shift_u, shift_z.
  - unfold back; lia.
  - rewrite sum_back; lia.
Qed.

Theorem shift_reaches_all : forall d u z,
  shift_u d (shift_u (back d) u) = u /\ shift_z d (shift_z (back d) z) = z.
Proof.
  intros; split; apply functional_extensionality; intro; unfold shift_u, shift_z.
  - unfold back; lia.
  - rewrite sum_back; lia.
Qed.

(* Published: the true running sum, the running sum of u, and any function F of all discrepancies and of coins. *)
Definition published {coins : Type} (F : (block -> Z) -> coins -> Z) (x u : tick -> Z) (z : block -> Z)
  (omega : coins) (past : list tick) : Z :=
  sum x past + sum u past + F (discrepancy u z) omega.

Theorem releases_agree : forall (coins : Type) (F : (block -> Z) -> coins -> Z) x x' u z omega past,
  let d := fun t => x t - x' t in
  published F x u z omega past = published F x' (shift_u d u) (shift_z d z) omega past.
Proof.
  intros; unfold published.
  assert (same : discrepancy (shift_u d u) (shift_z d z) = discrepancy u z)
    by (apply functional_extensionality; intro; apply discrepancies_stay).
  rewrite same; unfold shift_u; rewrite sum_add.
  assert (difference : sum d past = sum x past - sum x' past)
    by (clear same; unfold d; induction past; simpl; lia).
  lia.
Qed.

(* L R = M for every number of ticks: with the true sums of ticks and blocks in the place of noise, what is published is the
   true running sum, and F sees discrepancies that are all 0. *)
Theorem left_times_right : forall (coins : Type) (F : (block -> Z) -> coins -> Z) x omega past,
  published F (fun _ => 0) x (sum x) omega past = sum x past + F (fun _ => 0) omega.
Proof.
  intros; unfold published.
  assert (none : discrepancy x (sum x) = fun _ => 0)
    by (apply functional_extensionality; intro; unfold discrepancy; lia).
  rewrite none.
  assert (nothing : sum (fun _ => 0) past = 0) by (clear none; induction past; simpl; lia).
  lia.
Qed.

(* -- what the shift costs --------------------------------------------------------------------------------------- *)

(* A level has a whole rate and blocks; every tick lies in one block of it. *)
Definition level := (Z * list block)%type.

Fixpoint total (f : block -> Z) (blocks : list block) : Z :=
  match blocks with
  | [] => 0
  | b :: rest => f b + total f rest
  end.

Lemma blocks_cost : forall d blocks,
  total (fun b => Z.abs (sum d b)) blocks <= size d (concat blocks).
Proof.
  unfold size; induction blocks as [| b rest IH]; simpl; [lia |].
  rewrite sum_app. pose proof (abs_sum d b) as one. unfold size in one. lia.
Qed.

Fixpoint rates (levels : list level) : Z :=
  match levels with
  | [] => 0
  | (n, _) :: rest => n + rates rest
  end.

Fixpoint cost (d : tick -> Z) (levels : list level) : Z :=
  match levels with
  | [] => 0
  | (n, blocks) :: rest => n * total (fun b => Z.abs (sum d b)) blocks + cost d rest
  end.

Definition covers (ticks : list tick) (l : level) : Prop := 0 <= fst l /\ Permutation (concat (snd l)) ticks.

Theorem cost_of_levels : forall d ticks levels,
  Forall (covers ticks) levels -> cost d levels <= rates levels * size d ticks.
Proof.
  intros d ticks levels all; induction all as [| [n blocks] rest [positive same] _ IH]; simpl; [lia |].
  simpl in positive, same.
  pose proof (blocks_cost d blocks) as one.
  unfold size in one at 1; rewrite (sum_permutation _ _ _ same) in one.
  change (sum (fun t => Z.abs (d t)) ticks) with (size d ticks) in one.
  nia.
Qed.

(* The law of the noise: a number y of rate n has the weight exp(-r*n*|y|). Up to the factor r, this is the exponent of
   all numbers together; the ratio of two weights is exp(r * (difference of exponents)). *)
Definition exponent_u (n : Z) (u : tick -> Z) (ticks : list tick) : Z := n * size u ticks.

Fixpoint exponent_z (z : block -> Z) (levels : list level) : Z :=
  match levels with
  | [] => 0
  | (n, blocks) :: rest => n * total (fun b => Z.abs (z b)) blocks + exponent_z z rest
  end.

Lemma exponent_u_shift : forall n d u ticks, 0 <= n ->
  Z.abs (exponent_u n (shift_u d u) ticks - exponent_u n u ticks) <= n * size d ticks.
Proof.
  intros n d u ticks positive; unfold exponent_u.
  assert (one : Z.abs (size (shift_u d u) ticks - size u ticks) <= size d ticks)
    by (unfold size, shift_u; induction ticks; simpl; lia).
  nia.
Qed.

Lemma total_shift : forall d z blocks,
  Z.abs (total (fun b => Z.abs (shift_z d z b)) blocks - total (fun b => Z.abs (z b)) blocks)
  <= total (fun b => Z.abs (sum d b)) blocks.
Proof. unfold shift_z; induction blocks; simpl; lia. Qed.

Lemma exponent_z_shift : forall d z ticks levels, Forall (covers ticks) levels ->
  Z.abs (exponent_z (shift_z d z) levels - exponent_z z levels) <= cost d levels.
Proof.
  intros d z ticks levels all; induction all as [| [n blocks] rest [positive _] _ IH]; simpl; [lia |].
  simpl in positive. pose proof (total_shift d z blocks). nia.
Qed.

(* The theorem: with rates n0 of ticks and those of the levels, whose sum is N, the exponent changes by at most
   N * sum |d|. With N <= 1024 and 1024 * r * sum |d| <= epsilon the ratio of weights is at most exp(epsilon). *)
Theorem ratio_of_weights : forall n0 d u z ticks levels, 0 <= n0 -> Forall (covers ticks) levels ->
  Z.abs ((exponent_u n0 (shift_u d u) ticks + exponent_z (shift_z d z) levels)
         - (exponent_u n0 u ticks + exponent_z z levels))
  <= (n0 + rates levels) * size d ticks.
Proof.
  intros n0 d u z ticks levels positive all.
  pose proof (exponent_u_shift n0 d u ticks positive).
  pose proof (exponent_z_shift d z ticks levels all).
  pose proof (cost_of_levels d ticks levels all).
  lia.
Qed.
